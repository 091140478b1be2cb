"""The work of each phase of a rollout: of the whole model, and of all of a completion's tokens.
Pure."""

import dataclasses
from typing import Any

from autotune.estimate.protocol import RolloutTraceReply
from autotune.estimate.records.events import NOWHERE, Work, counted_rows, grown, work_from_plain
from autotune.estimate.records.shapes import Shape, ShapeFamily

WorkRows = list[list[Any]]


def work_of_phases(
    reply: RolloutTraceReply, tokens: int, length: int, growth: float, layers: int
) -> dict[str, WorkRows]:
    """Return the work of each phase of the whole model.

    Args:
        tokens: how many of a completion were decoded.
        length: tokens of a whole completion; `decode` is that of its middle one.
        growth: trainable bytes of the whole model over those of the traced one.
        layers: of the whole model.
    """
    of = {name: [work_from_plain(row) for row in rows] for name, rows in reply.work.items()}
    every_layer = layers if reply.layers else 0

    def scaled(shapes: list[tuple[int, list[Work]]], size: int) -> WorkRows:
        family = ShapeFamily(shapes=tuple(_shape(at, works) for at, works in shapes))
        return counted_rows(family.work(size, 0, reply.layers, every_layer).items())

    work = {
        name: scaled([(1, of.get(name, []))], 1)
        for name in ("prefill", "scoring", "judging", "update")
    }
    passes = [(tokens - 3, of.get("before", [])), (tokens - 2, of.get("decode", []))]
    mean = max(length // 2, 1)
    two = passes if all(works for _, works in passes) else passes[1:]
    work["decode"] = scaled(two, mean if len(two) > 1 else two[0][0])
    work["optimizer"] = grown(of["optimizer"], growth)
    return work


def _shape(size: int, works: list[Work]) -> Shape:
    outside = [w if w.region >= NOWHERE else dataclasses.replace(w, region=NOWHERE) for w in works]
    return Shape(size=size, chunks=0, events=[], work=outside)
