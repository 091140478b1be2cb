"""What the points of one variant take where DeepSpeed or FSDP shard it. Runs in a child only.

The engine itself is traced: of a deep model with a few layers at two depths, and of many
micro-batches only the smallest and the largest. The others, and all layers, follow stretch by
stretch (`records/depths.py`). Where layers or traces are not alike, all layers are traced; then
each micro-batch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.estimate.allocator.replay import CPU_GRANULE, CUDA_GRANULE, Replay, on_cpu, replayed
from autotune.estimate.protocol import (
    EstimateRequest,
    MicroBatch,
    Point,
    PointReply,
    ShapeWork,
    TraceReply,
    TraceRequest,
)
from autotune.estimate.records.depths import (
    LiveLimits,
    Peaks,
    at_depth,
    depths,
    highest_part,
    highest_peak,
    live_limits,
    peaks_at,
    peaks_of,
    with_one_sub_group,
    with_room_between_groups,
    work_at_depth,
)
from autotune.estimate.records.events import (
    COMMUNICATION,
    DATA,
    PHASE,
    Event,
    MemoryUse,
    Work,
    counted_rows,
    live_bytes,
    work_from_plain,
)
from autotune.estimate.records.first_step import with_smaller_batches
from autotune.estimate.records.shapes import Weights, lagrange
from autotune.estimate.records.steps import split_by_place, step_records
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.trace import trace_steps
from autotune.estimate.variants.micro_batches import VariantData, Worst, histogram
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Retracing
from autotune.job.methods import METHODS
from autotune.space.checkpointing import period_of
from autotune.space.sharding.sharding import Sharding

GAPS = 0.06
"""Share of what more layers bring that is lost between blocks of fixed segments (the 7B shape
with 20 layers: 5 to 13% under FSDP2 and ZeRO, nothing with the optimizer offloaded)."""
SIGMA = 0.07
"""How far reserved bytes are off that follow from few layers (`benchmarks/virtual_gpu`)."""
MOST_SIZES = 3
"""The most micro-batches of a kind that are traced as they are."""
_Kind = tuple[bool, bool, int]
"""Padded or not, flat or not, tokens of the longest row where they are not flat."""


@dataclass
class Step:
    """One traced optimizer step, after a first one: what is on the device, and what on the host."""

    device: list[Event]
    host: list[Event]
    granule: int
    work: list[Work]
    _replays: dict[bool, Replay] = field(default_factory=dict)

    @cached_property
    def peaks(self) -> Peaks:
        """The peaks on the device."""
        return peaks_of(self.device, self.granule)

    @cached_property
    def host_bytes(self) -> int:
        """The most on the host."""
        return live_bytes(self.host).peak_bytes

    def gap(self, *, expandable: bool) -> int:
        """Return what an allocator holds beyond the peak. Bytes."""
        if expandable not in self._replays:
            self._replays[expandable] = replayed(self.device, None, expandable_segments=expandable)
        replay = self._replays[expandable]
        return replay.reserved_bytes - replay.use.peak_bytes


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The traces of one number of layers: the steps in the order in which they were asked for."""

    steps: list[Step]
    optimizer_work: list[Work]


def trace_depth(
    request: EstimateRequest,
    layers: int | None,
    worsts: Sequence[Worst],
    *,
    accumulates: bool,
    optim: str | None,
) -> Depth:
    """Trace a step of each of these micro-batches, one behind the other. Before them is one of the
    largest; it opens the record of each, made as small as that one's own.

    Args:
        layers: None: all.

    Raises:
        Irregular: fewer layers cannot stand for all.
    """
    largest = max(worsts, key=lambda worst: worst.tokens)
    steps = [_micro_batch(worst) for worst in (largest, *worsts)]
    trace_request = _trace_request(request, layers, steps, accumulates=accumulates, optim=optim)
    reply = TraceCache(request).reply(trace_request, TraceReply, trace_steps)
    works = [[work_from_plain(row) for row in rows] for rows in reply.micro_work]
    records = step_records([tuple(event) for event in reply.events])
    shares = [worst.tokens / largest.tokens for worst in worsts]
    return Depth(
        steps=[
            _step(_smaller_opening(events, share), work, on_cuda=request.cuda is not None)
            for events, share, work in zip(records, shares, works[1:], strict=True)
        ],
        optimizer_work=[work_from_plain(row) for row in reply.optimizer_work],
    )


def _trace_request(
    request: EstimateRequest,
    layers: int | None,
    steps: Sequence[MicroBatch],
    *,
    accumulates: bool,
    optim: str | None,
) -> TraceRequest:
    per_row = METHODS[request.method].sequences
    config = request.config if optim is None else {**request.config, "optim": optim}
    rows = max(len(step.lengths) // per_row for step in steps)
    return TraceRequest(
        method=request.method,
        config={**config, "per_device_train_batch_size": rows},
        model_path=request.model_path,
        layers=layers,
        cuda=request.cuda,
        steps=list(steps),
        micro_steps=[2 if accumulates else 1] * len(steps),
        seed=request.seed,
        sharding=request.sharding,
        rank=request.rank,
        deepspeed=request.deepspeed if layers is None else with_one_sub_group(request.deepspeed),
    )


def _micro_batch(worst: Worst) -> MicroBatch:
    scored_tokens = max(sum(worst.lengths) - len(worst.lengths), 1)
    return MicroBatch(lengths=worst.lengths, labelled=min(worst.labelled / scored_tokens, 1.0))


def _smaller_opening(record: list[Event], share: float) -> list[Event]:
    """Return the record with this share of the micro-batch in its first optimizer step."""
    if share == 1:
        return record
    start, second = [n for n, e in enumerate(record) if e[0] == PHASE and e[1] == DATA][:2]
    opening = with_smaller_batches(record[start:second], record[:start], [share])
    return [*record[:start], *opening, *record[second:]]


def _step(events: list[Event], work: list[Work], *, on_cuda: bool) -> Step:
    if not on_cuda:
        return Step(device=events, host=[], granule=CPU_GRANULE, work=work)
    device, host = split_by_place(events)
    return Step(device=device, host=host, granule=CUDA_GRANULE, work=work)


@dataclass(frozen=True, kw_only=True)
class ContinuedStep:
    """A micro-batch at the model's own depth, from others and from fewer layers.

    Attributes:
        steps: of each depth the traced micro-batches that this one lies between.
        sizes: their weights. depths: those of the depths.
    """

    steps: Sequence[Sequence[Step]]
    sizes: Weights
    depths: Weights
    request: EstimateRequest

    @cached_property
    def use(self) -> MemoryUse:
        """The peak on the device. Irregular: the traces do not have the same stretches."""
        return highest_peak(self._peaks)

    @cached_property
    def _peaks(self) -> Peaks:
        traced_peaks = [
            peaks_at([step.peaks for step in steps], self.sizes) for steps in self.steps
        ]
        limits = self._limits
        if limits is not None:
            gathered_bytes = max(highest_part(peaks, COMMUNICATION) for peaks in traced_peaks)
            limits = replace(limits, gathered=max(limits.gathered, gathered_bytes))
        return peaks_at(traced_peaks, self.depths, limits)

    @property
    def _limits(self) -> LiveLimits | None:
        return live_limits(self.request.deepspeed, self.request.config)

    @property
    def host_bytes(self) -> int:
        """The most on the host."""
        return self.depths.interpolate(
            [self.sizes.interpolate([step.host_bytes for step in steps]) for steps in self.steps]
        )

    def replay(self, *, expandable: bool) -> Replay:
        """Return the replay of an allocator, held to the request's limit.

        What it holds beyond the peak is that of the deepest trace, of fixed segments a part of what
        more layers bring, and what groups of weights leave in an optimizer's step. Where only that
        is beyond the limit, it is taken to give it back.
        """
        peak, limit = self.use.peak_bytes, self.request.limit_bytes
        reserved = peak
        if self.request.cuda is not None:
            deepest = self.steps[-1]
            traced = self.sizes.interpolate(
                [highest_peak(step.peaks).peak_bytes for step in deepest]
            )
            reserved += self.sizes.interpolate(
                [step.gap(expandable=expandable) for step in deepest]
            )
            reserved += 0 if expandable else round(GAPS * max(peak - traced, 0))
            if self._limits is not None and len(self.steps) > 1:
                reserved += max(with_room_between_groups(self._peaks, self._limits) - peak, 0)
        excessive = limit is not None and reserved > limit
        missing = peak - limit if limit is not None and peak > limit else None
        gives_back = excessive and missing is None
        return Replay(
            use=self.use,
            reserved_bytes=limit if gives_back and limit is not None else reserved,
            retries=int(gives_back),
            missing_bytes=missing,
        )


def work_of_all(traces: Sequence[Depth], weights: Weights, place: int) -> list[tuple[Work, int]]:
    """Return the work of the micro-step of a traced step with all layers."""
    works = [depth.steps[place].work for depth in traces]
    return list(work_at_depth(works, weights).items())


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Micro-batches that are traced together, at each of the depths."""

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
        period = period_of(self._request.config)
        shallow = depths(layers, sharding, adapters=adapters, period=period)
        self._depths = (
            shallow if self.extent == FEW_LAYERS and not self._request.all_layers else (layers,)
        )

    def forget(self) -> None:
        """Drop traces with other layers."""
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
        direct = self.extent == DIRECT or METHODS[self._request.method].loops_over_rows
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
