"""What the points of one path take where DeepSpeed or FSDP spread a training. Runs in a child only.

Each point is traced as it is, with all its layers: what engines gather and exchange goes by sizes
of buckets, not by layers, so nothing is scaled from fewer.
"""

import dataclasses

from autotune.estimate import memory
from autotune.estimate.host_bytes import divided_by_place, since_training
from autotune.estimate.path_data import PathData
from autotune.estimate.protocol import (
    EstimateRequest,
    MicroBatch,
    Point,
    PointReply,
    ShapeWork,
    TraceReply,
    TraceRequest,
)
from autotune.estimate.record import Event, Work, counted_rows, live_bytes, work_from_plain
from autotune.estimate.shapes import Worst, histogram
from autotune.estimate.trace import trace_steps
from autotune.estimate.trace_cache import TraceCache
from autotune.methods import METHODS
from autotune.space.sharding import Sharding, worst_rank


class ShardedEstimates:
    """Answers for the points of one path, each traced when it is asked for."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request
        self._sharding = Sharding(**request.sharding or {})
        self._data = PathData(request)
        self._replies: dict[object, TraceReply] = {}
        self._shapes: dict[tuple[int, int, bool], ShapeWork] = {}
        self._optimizer_work: dict[str, list[list[object]]] = {}
        self.policy: dict[str, int] = {}

    def point(self, point: Point) -> PointReply:
        """What one point takes, on the device and on the host."""
        worst = self._data.worst(point)
        reply = self._reply(worst, point)
        events = since_training([tuple(event) for event in reply.events])
        device: list[Event] = events
        host: list[Event] = []
        if self._request.cuda is not None:
            device, host = divided_by_place(events)
        limit = self._request.limit_bytes
        replay = (
            memory.on_cpu(device, limit)
            if self._request.cuda is None
            else memory.replayed(device, limit, expandable_segments=point.expandable_segments)
        )
        return PointReply(
            **replay.told(),
            host_bytes=live_bytes(host).peak_bytes,
            sample=histogram(self._data.plan(point).sample),
            masked=self._data.padded(point),
            method="trace",
        )

    def shapes(self) -> list[ShapeWork]:
        """The work of each traced micro-step."""
        return list(self._shapes.values())

    def optimizer_work(self) -> dict[str, list[list[object]]]:
        """The work of an optimizer step on this device, by optimizer."""
        return self._optimizer_work

    def _reply(self, worst: Worst, point: Point) -> TraceReply:
        key = (worst, point.accumulates, point.optim)
        if key not in self._replies:
            asked = self._asked(worst, point)
            cache = TraceCache(self._request)
            reply = cache.known(asked, TraceReply) or cache.keep(asked, trace_steps)
            self.policy |= reply.policy
            self._note_work(worst, point, reply)
            self._replies[key] = dataclasses.replace(reply, micro_work=[], optimizer_work=[])
        return self._replies[key]

    def _asked(self, worst: Worst, point: Point) -> TraceRequest:
        """A first optimizer step of one short row, which makes the states; then the worst one."""
        per_row = METHODS[self._request.method].sequences
        config = self._request.config
        if point.optim is not None:
            config = {**config, "optim": point.optim}
        rows = max(len(worst.lengths) // per_row, 1)
        counted = max(sum(worst.lengths) - len(worst.lengths), 1)
        return TraceRequest(
            method=self._request.method,
            config={**config, "per_device_train_batch_size": rows},
            model_path=self._request.model_path,
            layers=None,
            cuda=self._request.cuda,
            steps=[
                MicroBatch(lengths=(max(max(worst.lengths) // 4, 8),) * per_row),
                MicroBatch(lengths=worst.lengths, labelled=min(worst.labelled / counted, 1.0)),
            ],
            accumulation=2 if point.accumulates else 1,
            seed=self._request.seed,
            sharding=self._request.sharding,
            rank=worst_rank(self._sharding),
            deepspeed=self._request.deepspeed,
        )

    def _note_work(self, worst: Worst, point: Point, reply: TraceReply) -> None:
        works = _works(reply.micro_work[-1])
        size = (1 if worst.flat else len(worst.lengths), max(worst.lengths), worst.padded)
        self._shapes[size] = ShapeWork(
            rows=size[0],
            length=sum(worst.lengths) if worst.flat else size[1],
            masked=worst.padded,
            flat=worst.flat,
            work=counted_rows((work, 1) for work in works),
        )
        optimizer = counted_rows((work, 1) for work in _works(reply.optimizer_work))
        self._optimizer_work.setdefault("", optimizer)
        if point.optim is not None:
            self._optimizer_work[point.optim] = optimizer


def _works(rows: list[object]) -> list[Work]:
    return [work_from_plain(row) for row in rows]  # type: ignore[arg-type]
