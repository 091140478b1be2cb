"""The replays of one variant's points: each made once, and none that does not matter."""

import dataclasses
from collections.abc import Callable

from autotune.estimate.allocator.replay import Replay, far_beyond, on_cpu, on_cuda, replayed
from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.records.events import Event, MemoryUse
from autotune.estimate.variants.collector import without_collector
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
        self._reserved_shares: dict[bool, float] = {}
        """Reserved bytes over live ones, of the latest point of each allocator that had room."""
        self._events: dict[object, dict[Shares, tuple[list[Event], MemoryUse]]] = {}

    def forget(self) -> None:
        """Drop what was made of earlier traces."""
        self._replays.clear()
        self._reserved_shares.clear()
        self._events.clear()

    def of(self, point: Point, worst: Worst, padded: bool, first: Shares) -> Replay:
        """Return the replay of a point, made once for all that share it."""
        if usual := self._usual_allocator(point):
            replay = self.of(usual, worst, padded, first)
            roomy = ROOMY * (self._request.limit_bytes or 0)
            fits = replay.missing_bytes is None and not replay.retries
            if fits and replay.reserved_bytes <= roomy:
                return replay
        key = (worst, padded, point.accumulates, point.optim, point.expandable_segments, first)
        if key not in self._replays:
            self._replays[key] = self._replay(point, worst, padded, first)
        return self._replays[key]

    def _usual_allocator(self, point: Point) -> Point | None:
        """Return the point with fixed segments, where both ways are planned; else None."""
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
        with without_collector():
            return self._far_beyond(point, use) or self._closely(point, events, use)

    def _far_beyond(self, point: Point, use: MemoryUse) -> Replay | None:
        """Return the replay of a point that does not fit by far, from one that was made; else
        None."""
        share = self._reserved_shares.get(point.expandable_segments)
        return None if share is None else far_beyond(use, self._request.limit_bytes, share)

    def _closely(self, point: Point, events: list[Event], use: MemoryUse) -> Replay:
        expandable, limit = point.expandable_segments, self._request.limit_bytes
        replay = replayed(events, limit, expandable_segments=expandable, use=use)
        if not replay.retries:  # one that was squeezed under the limit says nothing of others
            self._reserved_shares[expandable] = replay.reserved_bytes / max(use.peak_bytes, 1)
        return replay
