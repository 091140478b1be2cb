"""The replays of one variant's points: each made once, and none that does not matter."""

import dataclasses
from collections.abc import Callable

from autotune.estimate.allocator.replay import Replay, on_cpu, on_cuda, replayed
from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.records.events import Event, MemoryUse
from autotune.estimate.variants.sizes import Worst

ROOMY = 0.85
"""Where fixed segments take at most so much of the limit, growing ones are not replayed: they take
no more, but for a page."""
Shares = tuple[float, ...]
"""How large the micro-batches of the first step are beside the others; none: as large."""


class PointReplays:
    """Replays of the micro-batches of one variant.

    Args:
        record: the events of a run of a point: (point, its worst micro-batch, whether that is
            padded, its first step).
    """

    def __init__(
        self,
        request: EstimateRequest,
        record: Callable[[Point, Worst, bool, Shares], list[Event]],
    ) -> None:
        self._request, self._record = request, record
        self._replays: dict[object, Replay] = {}
        self._events: dict[object, dict[Shares, tuple[list[Event], MemoryUse]]] = {}

    def forget(self) -> None:
        """Drop what was made of earlier traces."""
        self._replays.clear()
        self._events.clear()

    def of(self, point: Point, worst: Worst, padded: bool, first: Shares) -> Replay:
        """The replay of a point, made once for all that share it."""
        if usual := self._usual_allocator(point):
            replay = self.of(usual, worst, padded, first)
            roomy = ROOMY * (self._request.limit_bytes or 0)
            if (
                replay.missing_bytes is None
                and not replay.retries
                and replay.reserved_bytes <= roomy
            ):
                return replay
        key = (worst, padded, point.accumulates, point.optim, point.expandable_segments, first)
        if key not in self._replays:
            self._replays[key] = self._replay(point, worst, padded, first)
        return self._replays[key]

    def _usual_allocator(self, point: Point) -> Point | None:
        """The point with fixed segments, where both ways are planned; else None."""
        usual = dataclasses.replace(point, expandable_segments=False)
        return usual if point.expandable_segments and usual in self._request.points else None

    def _replay(self, point: Point, worst: Worst, padded: bool, first: Shares) -> Replay:
        limit = self._request.limit_bytes
        if self._request.cuda is None:
            return on_cpu(self._record(point, worst, padded, ()), limit)
        key = (worst, padded, point.accumulates, point.optim)
        records = self._events.get(key, {})
        self._events = {key: records}  # records are large: those of one point at a time
        if first not in records:
            events = self._record(point, worst, padded, first)
            records[first] = events, on_cuda(events)
        events, use = records[first]
        return replayed(events, limit, expandable_segments=point.expandable_segments, use=use)
