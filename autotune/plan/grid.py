"""Checkpointing of some layers, from the traces without it and of all layers. Pure.

Of every n-th layer it lies on the line between the two; selective and offloaded checkpointing are
the trace of all layers, and what these keep or take away. So each value has its estimate without a
trace; what is expected to be faster than all that was traced (where nothing fits, leaner) is traced
itself.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply, PointReply
from autotune.estimate.records.events import ACTIVATIONS, MICRO_STEP
from autotune.estimate.variant import variant_of
from autotune.plan.engine_tasks import Rank
from autotune.plan.exchange import computed_bytes, is_wide
from autotune.plan.trace_choice import LIKELY, Effort, rank, representatives
from autotune.plan.variants import VariantTask
from autotune.space.checkpointing import (
    GRID,
    OFFLOAD,
    SELECTIVE,
    share_again,
    value_in,
    without_fields,
)

Hear = Callable[[int, EstimateReply], None]
Trace = Callable[[Sequence[VariantTask], str, Hear | None], list[EstimateReply]]
"""A function that traces tasks in children, in a folder of that name, and hands each reply on as it
comes."""
Estimates = Callable[[VariantTask, EstimateReply], dict[str, Estimate]]
BETWEEN = "between traces"
SIGMA = 0.05
"""Relative standard deviation of such bytes. Assumed, not measured."""
MOST = 4
"""Number of these values that are traced, one after the other. Chosen, not measured."""


def most_traced(effort: Effort) -> int:
    """Return how many of these values an effort traces."""
    return MOST if effort.first is None else min(effort.first, MOST)


def traced_where_promising(trace: Trace, estimates: Estimates, most: int) -> Trace:
    """Return a function that traces at most so many of the values between none and all layers."""

    def traced(tasks: Sequence[VariantTask], name: str, hear: Hear | None) -> list[EstimateReply]:
        if not (left := ends_of(tasks)):
            return trace(tasks, name, hear)
        replies, ranks = dict[int, EstimateReply](), dict[int, Rank]()

        def take(number: int, reply: EstimateReply, *, is_traced: bool) -> None:
            task = representatives(tasks[number])
            found = estimates(task, reply).values()
            replies[number] = reply
            ranks[number] = min(rank(e, by_formula=not is_traced, ruled_out=LIKELY) for e in found)

        def make(numbers: Sequence[int], folder: str) -> None:
            def receive(place: int, reply: EstimateReply) -> None:
                if hear is not None:
                    hear(numbers[place], reply)

            made = trace([tasks[number] for number in numbers], folder, receive)
            for number, reply in zip(numbers, made, strict=True):
                take(number, reply, is_traced=True)

        make([number for number in range(len(tasks)) if number not in left], name)
        for number, ends in left.items():
            reply = _between(tasks[number], [(tasks[end], replies[end]) for end in ends])
            take(number, reply, is_traced=False)
            if hear is not None:
                hear(number, reply)
        for _ in range(most):
            best = min(ranks[number] for number in ranks if number not in left)
            first = min(left, key=ranks.__getitem__, default=None)
            if first is None or ranks[first] >= best:
                break
            make([first], f"{name}-{first}")
            del left[first]
        return [replies[number] for number in range(len(tasks))]

    return traced


def ends_of(tasks: Sequence[VariantTask]) -> dict[int, tuple[int, int]]:
    """Return, for each task between, the number of the same without checkpointing, and with it in
    all layers."""
    keys = [(_key(task), value_in(task.traced.config)) for task in tasks]
    numbers = {key: number for number, key in enumerate(keys)}
    between = {}
    for number, (key, value) in enumerate(keys):
        none, full = numbers.get((key, False)), numbers.get((key, True))
        if value not in GRID or tasks[number].engine or none is None or full is None:
            continue
        known = [tasks[end].request.points for end in (none, full)]
        if all(point in points for points in known for point in tasks[number].request.points):
            between[number] = none, full
    return between


def _key(task: VariantTask) -> str:
    """Return the same text for tasks that differ in their checkpointing and points only."""
    fields = {**task.request.plain(), "points": None, "config": None}
    return json.dumps([fields, variant_of(without_fields(task.traced.config))], sort_keys=True)


def _between(task: VariantTask, ends: Sequence[tuple[VariantTask, EstimateReply]]) -> EstimateReply:
    """Return the reply of a task from those of its ends."""
    none, full = (reply for _, reply in ends)
    if none.problem is not None or full.problem is not None:
        return full if none.problem is None else none
    value, layers = value_in(task.traced.config), max(task.request.layers, 1)
    kept = 1 - share_again(value, layers)
    points = []
    for point in task.request.points:
        first, second = (r.points[t.request.points.index(point)] for t, r in ends)
        points.append(_point(first, second, kept, _streams(task, value, second)))
    shapes = [
        dataclasses.replace(one, work=_work(value, kept, other.work, one.work))
        for one in full.shapes
        for other in none.shapes
        if dataclasses.replace(one, work=[]) == dataclasses.replace(other, work=[])
    ]
    return dataclasses.replace(full, points=points, shapes=shapes)


def _streams(task: VariantTask, value: Any, full: PointReply) -> list[int]:
    """Return the bytes of each layer's result of attention, where that is kept; less each layer's
    input, where that waits on the host."""
    config = task.traced.config
    tokens = full.worst_tokens or max(padded for _, padded, _ in full.sample)
    width = {SELECTIVE: computed_bytes(config), OFFLOAD: -4 if is_wide(config) else -2}
    return [width.get(value, 0) * tokens * task.request.hidden] * max(task.request.layers, 1)


def _point(none: PointReply, full: PointReply, kept: float, streams: list[int]) -> PointReply:
    """Return a point whose layers keep all in this share of them. Of offloaded inputs one is on the
    device."""
    copied = -min(sum(streams), 0)
    added = round(kept * (none.peak_reserved_bytes - full.peak_reserved_bytes))
    added += sum(streams[copied > 0 :])
    others = [peak for phase, peak in full.phases.items() if phase != MICRO_STEP]
    activations = full.parts.get(ACTIVATIONS, 0)
    added = max(added, max(others, default=0) - full.peak_allocated_bytes, -activations)
    return dataclasses.replace(
        full,
        peak_allocated_bytes=full.peak_allocated_bytes + added,
        peak_reserved_bytes=full.peak_reserved_bytes + added,
        parts={**full.parts, ACTIVATIONS: activations + added},
        micro_peaks=none.micro_peaks if kept else full.micro_peaks,
        oom=False,
        missing_bytes=None,
        retries=0,
        method=BETWEEN,
        sigma=SIGMA,
        at_least=none.at_least or full.at_least,
        copied_bytes=copied,
        host_bytes=sum(1 << (-size - 1).bit_length() for size in streams if size < 0),
    )


def _work(value: Any, kept: float, none: Sequence[Any], full: Sequence[Any]) -> list[Any]:
    """Return the work of a shape: rows, each with how often it is done; attention once where its
    result is kept."""
    times: dict[str, list[Any]] = {}
    for share, rows in ((1 - kept, full), (kept, none)):
        for row in rows:
            entry = times.setdefault(repr(row[:-1]), [row, 0.0])
            again = 0.5 if value == SELECTIVE and row[1] == "attention" else 1.0
            entry[1] += share * again * row[-1]
    return [[*row[:-1], round(count)] for row, count in times.values() if round(count)]
