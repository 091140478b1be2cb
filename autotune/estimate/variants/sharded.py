"""What the points of one variant take where DeepSpeed or FSDP shard it. Runs in a child only.

The engine itself is traced: of a deep model with a few layers at two depths, and of many
micro-batches only the smallest and the largest. The others, and all layers, follow stretch by
stretch (`peaks_by_depth.py`). Where layers or traces are not alike, all layers are traced; then
each micro-batch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.estimate.allocator.replay import Replay, on_cpu, replayed
from autotune.estimate.protocol import EstimateRequest, Point, PointReply, ShapeWork
from autotune.estimate.records.depths import at_depth, depths
from autotune.estimate.records.events import counted_rows
from autotune.estimate.records.interpolation import lagrange
from autotune.estimate.records.work_by_depth import work_at_depth
from autotune.estimate.variants.data import VariantData
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Retracing
from autotune.estimate.variants.sharded_traces import (
    SIGMA,
    ContinuedStep,
    Depth,
    trace_depth,
    work_of_all,
)
from autotune.estimate.variants.sizes import Worst, histogram
from autotune.job.methods import METHODS
from autotune.space.sharding.sharding import Sharding

MOST_SIZES = 3
"""The most micro-batches of a kind that are traced as they are."""
_Kind = tuple[bool, bool, int]
"""Padded or not, flat or not, tokens of the longest row where they are not flat."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is traced together: micro-batches, at each of the depths."""

    worsts: list[Worst]
    traces: list[Depth]


class ShardedEstimates(Retracing):
    """Answers for the points of one variant, each run of traces made when it is asked for."""

    def __init__(self, request: EstimateRequest) -> None:
        super().__init__()
        self._request = request
        self._data = VariantData(request)
        self._per_row = METHODS[request.method].sequences
        self._runs: dict[tuple[bool, str | None], _Run] = {}
        self._depths: tuple[int, ...] = ()

    # -- what to trace

    def trace(self) -> None:
        """Choose the depths; runs are traced when a point asks for them."""
        layers, sharding = self._request.layers, Sharding(**self._request.sharding or {})
        adapters = bool(self._request.config.get("use_peft"))
        shallow = depths(layers, sharding, adapters=adapters)
        self._depths = (
            shallow if self.way == FEW_LAYERS and not self._request.all_layers else (layers,)
        )

    def forget(self) -> None:
        """Traces with other layers are of no use any more."""
        self._runs.clear()

    def _run(self, point: Point) -> _Run:
        key = (point.accumulates, point.optim)
        if key not in self._runs:
            points = [
                other_point
                for other_point in self._request.points
                if (other_point.accumulates, other_point.optim) == key
            ]
            worsts = self._to_trace([self._data.worst(member) for member in points])
            all_layers = self._depths == (self._request.layers,)
            traces = [
                trace_depth(
                    self._request,
                    None if all_layers else layers,
                    [*worsts, *self._short_rows],
                    accumulates=point.accumulates,
                    optim=point.optim,
                )
                for layers in self._depths
            ]
            self._runs[key] = _Run(worsts=worsts, traces=traces)
        return self._runs[key]

    @cached_property
    def _short_rows(self) -> list[Worst]:
        """One short row, where micro-batches of a point differ in their size: speed is needed over
        all the lengths of the data. What is traced whole is traced for its bytes alone."""
        points = self._request.points
        if self._request.all_layers or all(
            len(set(self._data.plan(point).sample)) == 1 for point in points
        ):
            return []
        worsts = [self._data.worst(point) for point in points]
        length = max(max(max(worst.lengths) for worst in worsts) // 4, 8)
        lengths = (length,) * self._per_row
        return [Worst(lengths=lengths, labelled=sum(lengths), flat=worsts[0].flat)]

    def _to_trace(self, worsts: Sequence[Worst]) -> list[Worst]:
        """Return the micro-batches that are traced, the smallest first."""
        kinds: dict[_Kind, dict[int, Worst]] = {}
        for worst in sorted(worsts, key=lambda worst: worst.size):
            kinds.setdefault(_kind(worst), {})[worst.size] = worst
        traced_worsts: list[Worst] = []
        direct = self.way == DIRECT or METHODS[self._request.method].loops_over_rows
        for kind, by_size in kinds.items():
            sizes = list(by_size) if direct else _ends(list(by_size), flat=kind[1])
            traced_worsts += [by_size[size] for size in sizes]
        return sorted(traced_worsts, key=lambda worst: (worst.size, worst.lengths))

    # -- answers

    def point(self, point: Point) -> PointReply:
        """Return what one point takes, on the device and on the host."""
        return self.attempt(lambda: self._point(point))

    def _point(self, point: Point) -> PointReply:
        run, worst = self._run(point), self._data.worst(point)
        expandable = point.expandable_segments
        if worst in run.worsts and len(run.traces) == 1:
            step = run.traces[0].steps[run.worsts.index(worst)]
            limit = self._request.limit_bytes
            if self._request.cuda is None:
                replay = on_cpu(step.device, limit)
            else:
                replay = replayed(step.device, limit, expandable_segments=expandable)
            return self._reply(point, replay, step.host_bytes)
        continued = self._continued(run, worst)
        replay = continued.replay(expandable=expandable)
        reply = self._reply(point, replay, continued.host_bytes)
        return dataclasses.replace(reply, method="scaled trace", sigma=SIGMA)

    def _continued(self, run: _Run, worst: Worst) -> ContinuedStep:
        places = [
            n for n, other_worst in enumerate(run.worsts) if _kind(other_worst) == _kind(worst)
        ]
        if worst in run.worsts:
            places = [run.worsts.index(worst)]
        elif len(places) > 1 and run.worsts[places[0]].size == 1:
            places = places[1:]  # one row alone is another variant of the program
        return ContinuedStep(
            steps=[[depth.steps[place] for place in places] for depth in run.traces],
            sizes=lagrange([run.worsts[place].size for place in places], worst.size),
            depths=at_depth(self._depths, self._request.layers),
            request=self._request,
        )

    def _reply(self, point: Point, replay: Replay, host: int) -> PointReply:
        return PointReply(
            **replay.as_reply_fields(),
            host_bytes=host,
            sample=histogram(self._data.plan(point).sample),
            masked=self._data.padded(point),
            sigma=self._data.order_sigma(point),
            method="trace",
        )

    # -- what a step computes

    def shapes(self) -> list[ShapeWork]:
        """Return the work of each traced micro-step with all layers."""
        weights = at_depth(self._depths, self._request.layers)
        works: dict[tuple[int, int, bool], ShapeWork] = {}
        for run in self._runs.values():
            for place, worst in enumerate([*run.worsts, *self._short_rows]):
                rows = 1 if worst.flat else len(worst.lengths)
                length = sum(worst.lengths) if worst.flat else max(worst.lengths)
                works[rows, length, worst.padded] = ShapeWork(
                    rows=rows,
                    length=length,
                    masked=worst.padded,
                    flat=worst.flat,
                    work=counted_rows(work_of_all(run.traces, weights, place)),
                )
        return list(works.values())

    def optimizer_work(self) -> dict[str, list[list[object]]]:
        """Return the work of an optimizer step on this device, by optimizer."""
        weights = at_depth(self._depths, self._request.layers)
        works_by_optimizer: dict[str, list[list[object]]] = {}
        for (_, optim), run in self._runs.items():
            works = work_at_depth([depth.optimizer_work for depth in run.traces], weights)
            works_by_optimizer.setdefault(optim or "", counted_rows(works.items()))
        if works_by_optimizer:
            works_by_optimizer.setdefault("", next(iter(works_by_optimizer.values())))
        return works_by_optimizer


def _kind(worst: Worst) -> _Kind:
    return worst.padded, worst.flat, 0 if worst.flat else max(worst.lengths)


def _ends(sizes: list[int], *, flat: bool) -> list[int]:
    """Return the sizes, of those in order, that the others lie between; masks of flat ones grow
    with the square of their tokens. One row alone is another variant."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    if flat:
        return [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    single_row = sizes[: sizes[0] == 1]
    return [*single_row, sizes[len(single_row)], sizes[-1]]
