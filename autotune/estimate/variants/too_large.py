"""Points that are too large, so that nothing larger need be traced. Pure."""

import dataclasses

from autotune.estimate.allocator.replay import FAR_BEYOND
from autotune.estimate.protocol import Point, PointReply
from autotune.estimate.records.events import GRADIENTS
from autotune.training.rollout_plan import Rollout


class TooLarge:
    """The points of a variant that were found to be far beyond the limit."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit = limit_bytes or 0
        self._found: list[tuple[Point, PointReply]] = []

    def note(self, point: Point, reply: PointReply) -> None:
        """A point was traced."""
        if (reply.missing_bytes or 0) > FAR_BEYOND * self._limit:
            self._found.append((point, reply))

    def smaller_than(self, point: Point) -> PointReply | None:
        """Return what a smaller point takes that is too large; None: there is none."""
        for other, reply in self._found:
            accumulates = point.accumulates or self._keeps_no_gradients(reply)
            if is_larger(dataclasses.replace(point, accumulates=accumulates), other):
                return reply
        return None

    def _keeps_no_gradients(self, reply: PointReply) -> bool:
        """True if what is live is too much by itself, at a moment without gradients: then it does
        not matter whether these are kept for a next micro-step."""
        return reply.peak_allocated_bytes > self._limit and not reply.parts.get(GRADIENTS)


def sizes(point: Point) -> tuple[int, int]:
    """(completions that are trained on at once, that are generated at once)."""
    rollout = Rollout(**point.batching)
    return rollout.micro_batch, rollout.at_once


def is_larger(point: Point, other: Point) -> bool:
    """True if a point differs from another one only in that it trains or generates more at once."""
    sizes, others = Rollout(**point.batching), Rollout(**other.batching)
    alike = dataclasses.replace(
        sizes,
        micro_batch=others.micro_batch,
        accumulation=others.accumulation,
        chunk=others.chunk,
    )
    same = dataclasses.replace(point, batching=other.batching, accumulates=other.accumulates)
    return (
        alike == others
        and same == other
        and point.accumulates >= other.accumulates
        and sizes.micro_batch >= others.micro_batch
        and sizes.at_once >= others.at_once
    )
