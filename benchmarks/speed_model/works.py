"""The work of a trace as pieces: counted, and those of a chunked loss by themselves. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from autotune.estimate.records.events import NOWHERE, Work, chunk
from autotune.estimate.speed.step_time import TERMS, TimeParts

LOSS = chunk(0)


def added(parts: TimeParts, further: TimeParts) -> TimeParts:
    """The parts of both in the same micro-step: host, device and copies each do more."""
    return replace(parts, **{t: getattr(parts, t) + getattr(further, t) for t in TERMS})


def work_counts(rows: Iterable[Sequence[Any]]) -> list[tuple[Work, int]]:
    """The rows of a trace's work, equal ones once with their number.

    Of the regions only the chunks of a loss are kept, as one (`loss_apart`).
    """
    number: Counter[Work] = Counter()
    for operator, kind, dtype, dims, flops, moved_bytes, region in rows:
        number[
            Work(
                operator=operator,
                kind=kind,
                dtype=dtype,
                dims=tuple(dims),
                flops=flops,
                moved_bytes=moved_bytes,
                region=LOSS if region < NOWHERE else NOWHERE,
            )
        ] += 1
    return list(number.items())


def split_off_loss(
    works: Iterable[tuple[Work, int]],
) -> tuple[list[tuple[Work, int]], list[tuple[Work, int]]]:
    """(the rest, the chunks of a chunked loss).

    They grow differently: the rest with the tokens of a micro-batch, padding included, the chunks
    with those that have a label, a whole chunk at a time.
    """
    works = list(works)
    outside_loss = [piece for piece in works if piece[0].region >= NOWHERE]
    return outside_loss, [piece for piece in works if piece[0].region < NOWHERE]
