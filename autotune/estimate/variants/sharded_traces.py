"""Traces of a training that DeepSpeed or FSDP shards: a few depths, a few micro-batches.

Runs in a child only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.estimate.allocator.replay import CPU_GRANULE, CUDA_GRANULE, Replay, replayed
from autotune.estimate.protocol import EstimateRequest, MicroBatch, TraceReply, TraceRequest
from autotune.estimate.records.depths import LiveLimits, live_limits, with_one_sub_group
from autotune.estimate.records.events import (
    COMMUNICATION,
    DATA,
    PHASE,
    Event,
    MemoryUse,
    Work,
    live_bytes,
    work_from_plain,
)
from autotune.estimate.records.first_step import with_smaller_batches
from autotune.estimate.records.host import split_by_place
from autotune.estimate.records.interpolation import Weights
from autotune.estimate.records.peaks_by_depth import (
    Peaks,
    highest_part,
    highest_peak,
    peaks_at,
    peaks_of,
    with_room_between_groups,
)
from autotune.estimate.records.steps import step_records
from autotune.estimate.records.work_by_depth import work_at_depth
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.trace import trace_steps
from autotune.estimate.variants.sizes import Worst
from autotune.job.methods import METHODS

GAPS = 0.06
"""Share of what more layers bring that is lost between blocks of fixed segments (the 7B shape
with 20 layers: 5 to 13% under FSDP2 and ZeRO, nothing with the optimizer offloaded)."""
SIGMA = 0.07
"""How far reserved bytes are off that follow from few layers (`benchmarks/virtual_gpu`)."""


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
    """What was traced with so many layers: the steps in the order in which they were asked for."""

    layers: int
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
        layers=layers or request.layers,
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
        beyond = limit is not None and reserved > limit
        missing = peak - limit if limit is not None and peak > limit else None
        gives_back = beyond and missing is None
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
