"""What the points of one variant take, and which shapes to trace for that. Runs in a child only."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

from autotune.estimate.allocator.pools import LARGE_SEGMENT
from autotune.estimate.allocator.replay import Replay, ReplayedRecord, on_cpu, oversized
from autotune.estimate.protocol import EstimateRequest, MicroBatch, Point, PointReply, ShapeWork
from autotune.estimate.records.events import STEP, Event, MemoryUse, counted_rows, grown, live_bytes
from autotune.estimate.records.layers import CHUNKS, Irregular
from autotune.estimate.records.shapes import passing_of_step
from autotune.estimate.records.steps import pinned, split_by_place
from autotune.estimate.tracing.fused_head import tokens_per_chunk
from autotune.estimate.tracing.kernels.cuda import MOST_UNSORTED_IDS
from autotune.estimate.variant import optimizer_config
from autotune.estimate.variants.micro_batches import (
    LossChunks,
    TracedSizes,
    VariantData,
    Worst,
    chunk_count,
    histogram,
    micro_batch,
    sizes_to_trace,
    smallest_with_chunks,
)
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Retracing
from autotune.estimate.variants.traces import Traces, without_collector
from autotune.facts.stack import fused_head
from autotune.job.methods import METHODS
from autotune.space.attention import is_flash
from autotune.space.checkpointing import OFFLOAD, value_in

ENTROPY_ROWS, CHUNKED_ROWS = 128, 256
"""Rows a chunk in TRL: `entropy_from_logits`, `_CHUNKED_LM_HEAD_CHUNK_SIZE`; checked by traces."""
ROOMY = 0.85
"""Where fixed segments take at most so much of the limit, growing ones are not replayed: they take
no more, but for a page."""
Shares = tuple[float, ...]
"""Sizes of the first step's micro-batches, relative to the others; none: they are as large."""
SMALL_STEP = 0.005
"""Where an optimizer's step takes so little of the peak for itself, it is not replayed again."""
Key = tuple[int, int, bool]


class OfflineEstimates(Retracing):
    """Traces a variant once, when it is made; then answers for its points."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request
        self._data = VariantData(request)
        self._per_row = METHODS[request.method].sequences
        self._chunking = chunking_of(request)
        self._worsts = [self._data.worst(point) for point in request.points]
        self._flat = self._worsts[0].flat
        kernel = request.config.get("attn_implementation")
        eager, self._flash = kernel == "eager", is_flash(kernel)
        # The kernels of sdpa differ with and without a mask; eager attention always has one.
        self._uneven = not self._flat and not eager and any(map(self._data.padded, request.points))
        self.traces = Traces(request)
        self._sizes: dict[bool, TracedSizes] = {}
        self._length = max(max(worst.lengths) for worst in self._worsts)
        # What candidates share with a plan must not depend on which others are planned with them.
        self.opening = self._short_rows(max(self._length // 4, 8))
        self._optimizer_traces: dict[str, Traces] = {}
        self._copied: dict[Worst, int] = {}
        self._pinned: dict[Worst, int] = {}
        self._replays = PointReplays(request, self._record)
        super().__init__()
        self.attempt(self._check_chunks)

    # -- what to trace

    def _short_rows(self, length: int) -> MicroBatch:
        """Return one row, its sequences all of this length."""
        return MicroBatch(lengths=(length,) * self._per_row, labelled=1.0)

    def forget(self) -> None:
        """Drop what was made of earlier traces."""
        self._replays.forget()
        self._optimizer_traces.clear()
        self.__dict__.pop("_growth", None)

    def _check_chunks(self) -> None:
        """Raise Irregular if TRL's chunks are not those counted here: scaling follows these."""
        if self.extent == DIRECT:
            return
        for size, length, padded in self.traces.traced():
            shape = self.traces.shape((size, length, padded))
            batch = self._micro_batch(size, length, padded)
            expected_chunks = self._chunks_of(batch.lengths, batch.labelled)
            if shape.chunks and abs(shape.chunks - expected_chunks) > 1:
                raise Irregular("the loss is not computed in the chunks that were expected")

    @property
    def _labelled(self) -> float:
        """Share of the tokens that count in the loss."""
        labelled = sum(worst.labelled for worst in self._worsts)
        tokens = sum(sum(worst.lengths) - len(worst.lengths) for worst in self._worsts)
        return min(labelled / max(tokens, 1), 1.0)

    def _share(self, size: int, length: int) -> float:
        """Share that is traced: of a loss in small chunks as few as make chunks. A fused head holds
        the hidden states of all labelled tokens, and their gradients, so these must grow."""
        share = self._labelled
        if self._chunking.labelled_only and self._chunking.rows == CHUNKED_ROWS:
            enough = (CHUNKS.smallest + 0.5) * self._chunking.rows
            share = min(share, enough / max(size if self._flat else size * (length - 1), 1))
        return share

    def trace(self) -> None:
        """Trace all that is needed, to the current extent."""
        batches: dict[Key, MicroBatch] = {}
        variants = {worst.padded for worst in self._worsts} | ({True} if self._uneven else set())
        if any(worst.size == 1 for worst in self._worsts):
            variants |= {False}
        for padded in sorted(variants):
            fitting = [w.size for w in self._worsts if not (padded and w.size == 1)]
            fitting = [n for n in fitting if padded or n == 1 or not self._needs_padding(n)]
            self._sizes[padded] = self._sizes_of(fitting or [2 * self._per_row])
            for size in self._sizes[padded].every:
                batches[size, self._length, padded] = self._micro_batch(size, self._length, padded)
        self._add_short_shapes(batches)
        all_layers = self.extent != FEW_LAYERS
        self.traces.make(batches, opening=self.opening, all_layers=all_layers)

    def _needs_padding(self, size: int) -> bool:
        return all(worst.padded for worst in self._worsts if worst.size == size)

    def _sizes_of(self, fitting: list[int]) -> TracedSizes:
        if self.extent == DIRECT or METHODS[self._request.method].loops_over_rows:
            return TracedSizes(direct=tuple(sorted(set(fitting))))
        per_size = 1.0 if self._flat else self._length - 1.0
        if self._chunking.labelled_only:
            labelled = sum(worst.labelled for worst in self._worsts)
            per_size *= labelled / max(sum(sum(worst.lengths) for worst in self._worsts), 1)
        smallest = smallest_with_chunks(per_size, self._chunking.rows, flat=self._flat)
        smallest = -(-smallest // self._per_row) * self._per_row
        unsorted = MOST_UNSORTED_IDS // (1 if self._flat else self._length)
        trains_embeddings = not self._request.config.get("use_peft")
        is_sorted = self._request.cuda is not None and trains_embeddings
        return sizes_to_trace(
            fitting,
            flat=self._flat,
            smallest_with_chunks=smallest,
            most_unsorted=unsorted if is_sorted else None,
            linear=self._flash,
            multiple=self._per_row,
        )

    def _micro_batch(self, size: int, length: int, padded: bool) -> MicroBatch:
        share = self._share(size, length)
        return micro_batch(size, length, flat=self._flat, padded=padded, share=share)

    def _add_short_shapes(self, batches: dict[Key, MicroBatch]) -> None:
        """Add shapes of short rows: speed is needed over all the lengths of the data.

        Padded ones where there are any: what rows without padding take at other lengths follows
        from the same curves (`speed/variants.py`).
        """
        length = max(self._length // 4, 8)
        padded = True in self._sizes
        traced_sizes = self._sizes[padded]
        if self._flat and traced_sizes.every[0] > 2 * self._length:
            key = (self._length, self._length, padded)  # a curve needs a short one
            batches.setdefault(key, self._micro_batch(*key))
        sizes = [] if self._flat else [traced_sizes.smallest_scaled]
        for size in sizes + ([1] if sizes and 1 in traced_sizes.direct and not padded else []):
            key = (size, length, padded)
            batches.setdefault(key, self._micro_batch(*key))

    # -- answers

    def hold_to(self, limit_bytes: int | None) -> None:
        """Answer for this limit from now on."""
        self._replays.limit_bytes = limit_bytes

    def order(self, points: Sequence[Point]) -> list[int]:
        """Return the smallest micro-batches first."""
        return sorted(range(len(points)), key=lambda index: self._data.worst(points[index]).tokens)

    def _chunks(self, worst: Worst) -> int:
        return chunk_count(worst, self._chunking)

    def _chunks_of(self, lengths: Sequence[int], share: float) -> int:
        """Return the chunks of a micro-batch of which this share is labelled."""
        labelled = sum(max(round(n * share), 1) - 1 for n in lengths)
        return self._chunks(Worst(lengths=tuple(lengths), labelled=labelled, flat=self._flat))

    def point(self, point: Point) -> PointReply:
        """Return what one point takes: the worst of its padded and its even micro-batch."""
        return self.attempt(lambda: self._point(point))

    def _point(self, point: Point) -> PointReply:
        worst = self._data.worst(point)
        variants = [worst.padded]
        if worst.size > 1 and True in self._sizes:
            variants.append(True)
        replies = [self._variant(point, worst, padded) for padded in dict.fromkeys(variants)]
        return max(replies, key=lambda reply: reply.peak_reserved_bytes)

    def _variant(self, point: Point, worst: Worst, padded: bool) -> PointReply:
        if True not in self._sizes or False not in self._sizes:
            padded = next(iter(self._sizes))
        replay = self._replayed(point, worst, padded)
        return PointReply(
            **replay.as_reply_fields(),
            sigma=self._data.order_sigma(point),
            sample=histogram(self._data.plan(point).sample),
            masked=self._data.padded(point),
            worst_tokens=worst.tokens,
            copied_bytes=self._copied.get(worst, 0),
            host_bytes=self._pinned.get(worst, 0),
            method=self._method(worst.size in self._sizes[padded].direct and not replay.scaled),
        )

    def _method(self, direct: bool) -> str:
        all_layers = self.traces.traced_layers in (0, self._request.layers)
        return "trace" if direct and all_layers else "scaled trace"

    def _replayed(self, point: Point, worst: Worst, padded: bool) -> Replay:
        """Return the replay of a point, made once for all that share it."""
        if point.optim is not None:
            base = self._replayed(dataclasses.replace(point, optim=None), worst, padded)
            passing = self._passing_of(point.optim)
            step = round(base.use.phases.get(STEP, base.use.peak_bytes) + passing)
            if (
                passing + LARGE_SEGMENT <= SMALL_STEP * base.use.peak_bytes
                and step < base.use.peak_bytes
            ):
                use = dataclasses.replace(base.use, phases={**base.use.phases, STEP: step})
                return dataclasses.replace(base, use=use)
        replay = self._replays.of(point, worst, padded, ())
        shares = () if self._request.cuda is None else self._data.first_shares(point)
        if not shares or replay.scaled:
            return replay
        smaller_first = self._replays.of(point, worst, padded, shares)
        return max(replay, smaller_first, key=lambda replay: replay.need)

    def _passing_of(self, optim: str) -> float:
        """Return what a step with another optimizer makes and lets go of, of the whole model.
        Bytes."""
        passing = passing_of_step(self._traces_with(optim).first_step())
        return live_bytes(passing).peak_bytes * self._growth

    @cached_property
    def _growth(self) -> float:
        return self.traces.growth()

    def _record(self, point: Point, worst: Worst, padded: bool, first: Shares) -> list[Event]:
        sizes = self._sizes[padded].measures(worst.size)
        keys = [(size, self._length, padded) for size in sizes]
        chunks = self.traces.shape(keys[0]).chunks
        if chunks and worst.size not in self._sizes[padded].direct:
            chunks = self._chunks(worst)
        optimizer = None if point.optim is None else self._traces_with(point.optim)
        with without_collector():
            record = self.traces.record(
                keys,
                worst.size,
                chunks,
                accumulates=point.accumulates,
                optimizer=optimizer,
                first_shares=first,
            )
            if value_in(self._request.config) != OFFLOAD:
                return record
            record, host = split_by_place(record)
            self._copied[worst] = live_bytes(host).peak_bytes
            self._pinned[worst] = live_bytes(map(pinned, host)).peak_bytes
            return record

    def _traces_with(self, optim: str) -> Traces:
        """Return traces with another optimizer, which keeps the same state."""
        if optim not in self._optimizer_traces:
            config = optimizer_config(self._request.config, optim)
            traces = Traces(dataclasses.replace(self._request, config=config))
            small, all_layers = self._short_rows(8), self.extent != FEW_LAYERS
            traces.make({(self._per_row, 8, False): small}, opening=small, all_layers=all_layers)
            self._optimizer_traces[optim] = traces
        return self._optimizer_traces[optim]

    def shapes(self) -> list[ShapeWork]:
        """Return the work of each traced shape, for the whole model."""
        return self.attempt(self._shapes)

    def _shapes(self) -> list[ShapeWork]:
        works = []
        for size, length, padded in self.traces.traced():
            shape = self.traces.shape((size, length, padded))
            lengths = self._micro_batch(size, length, padded).lengths
            # Traced are as few chunks as will do; the data may label more.
            chunks = self._chunks_of(lengths, self._labelled) if shape.chunks else 0
            work = self.traces.work([(size, length, padded)], size, chunks)
            works.append(
                ShapeWork(
                    rows=1 if self._flat else size,
                    length=size if self._flat else length,
                    masked=padded,
                    flat=self._flat,
                    work=counted_rows(work),
                )
            )
        return works

    def optimizer_work(self) -> dict[str, list[list[object]]]:
        """Return the work of an optimizer step of the whole model: that of the traced one, as much
        more as there are more trainable weights."""
        return self.attempt(self._optimizer_work)

    def _optimizer_work(self) -> dict[str, list[list[object]]]:
        traced = {"": self.traces.optimizer_work}
        traced |= {name: traces.optimizer_work for name, traces in self._optimizer_traces.items()}
        return {name: grown(works, self._growth) for name, works in traced.items()}


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
        self.limit_bytes = request.limit_bytes
        self._replays: dict[object, Replay] = {}
        self._reserved_shares: dict[tuple[bool, int | None], float] = {}
        """Reserved bytes over live ones, of the latest point that had room: of each allocator and
        limit, as if that limit were asked for alone."""
        self._records: dict[object, dict[Shares, ReplayedRecord]] = {}

    def forget(self) -> None:
        """Drop what was made of earlier traces."""
        self._replays.clear()
        self._reserved_shares.clear()
        self._records.clear()

    def of(self, point: Point, worst: Worst, padded: bool, first: Shares) -> Replay:
        """Return the replay of a point, made once for all that share it."""
        if usual := self._usual_allocator(point):
            replay = self.of(usual, worst, padded, first)
            roomy = ROOMY * (self.limit_bytes or 0)
            fits = replay.missing_bytes is None and not replay.retries
            if fits and replay.reserved_bytes <= roomy:
                return replay
        kind = (worst, padded, point.accumulates, point.optim, point.expandable_segments, first)
        key = (*kind, self.limit_bytes)
        if key not in self._replays:
            self._replays[key] = self._replay(point, worst, padded, first)
        return self._replays[key]

    def _usual_allocator(self, point: Point) -> Point | None:
        """Return the point with fixed segments, where both ways are planned; else None."""
        usual = dataclasses.replace(point, expandable_segments=False)
        return usual if point.expandable_segments and usual in self._request.points else None

    def _replay(self, point: Point, worst: Worst, padded: bool, first: Shares) -> Replay:
        limit = self.limit_bytes
        if self._request.cuda is None:
            return on_cpu(self._record(point, worst, padded, ()), limit)
        key = (worst, padded, point.accumulates, point.optim)
        records = self._records.get(key, {})
        self._records = {key: records}  # records are large: those of one point at a time
        if first not in records:
            records[first] = ReplayedRecord(self._record(point, worst, padded, first))
        record = records[first]
        with without_collector():
            return self._scaled_replay(point, record.use) or self._whole_replay(point, record)

    def _scaled_replay(self, point: Point, use: MemoryUse) -> Replay | None:
        """Return the replay of a point that does not fit by far, from one that was made; else
        None."""
        share = self._reserved_shares.get((point.expandable_segments, self.limit_bytes))
        return None if share is None else oversized(use, self.limit_bytes, share)

    def _whole_replay(self, point: Point, record: ReplayedRecord) -> Replay:
        expandable = point.expandable_segments
        replay = record.held_to(self.limit_bytes, expandable_segments=expandable)
        if not replay.retries:  # one that was squeezed under the limit says nothing of others
            share = replay.reserved_bytes / max(record.use.peak_bytes, 1)
            self._reserved_shares[expandable, self.limit_bytes] = share
        return replay


def chunking_of(request: EstimateRequest) -> LossChunks:
    """Return how the installed TRL divides the loss of a variant. Its fused head scores the
    labelled tokens on CUDA, and every position elsewhere."""
    if fused_head():
        return LossChunks(rows=tokens_per_chunk(), labelled_only=request.cuda is not None)
    if request.config.get("loss_type") == "chunked_nll":
        return LossChunks(rows=CHUNKED_ROWS, labelled_only=True)
    return LossChunks(rows=ENTROPY_ROWS, labelled_only=False)
