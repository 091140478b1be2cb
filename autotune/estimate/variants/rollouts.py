"""What the points of one variant take where the policy generates what it is trained on.

Each point is traced as it is, with few layers and few tokens; nothing is scaled from other sizes,
because how many passes there are depends on them. Points larger than one that is far too large are
not traced. Runs in a child only.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.allocator.replay import OVERSIZE_SHARE, Replay, on_cpu, replayed
from autotune.estimate.formula.devices import on_devices
from autotune.estimate.protocol import (
    EstimateRequest,
    Point,
    PointReply,
    RolloutTraceReply,
    RolloutTraceRequest,
)
from autotune.estimate.records.decoding import (
    GENERATION,
    TOKENS,
    with_all_tokens,
    without_generations,
)
from autotune.estimate.records.events import (
    GRADIENTS,
    NOWHERE,
    PHASE,
    STEP,
    TEMPORARIES,
    VLLM,
    Event,
    Work,
    chunk,
    counted_rows,
    grown,
    live_at,
    live_bytes,
    work_from_plain,
)
from autotune.estimate.records.layers import CHUNKS, LAYERS, with_chunks, with_layers
from autotune.estimate.records.shapes import Shape, ShapeFamily, passing_of_step
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.rollout import trace_rollout
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Retracing
from autotune.estimate.variants.traces import gradient_bytes, without_collector
from autotune.job.methods import METHODS
from autotune.training.batch_plan import Rows
from autotune.training.rollout_plan import Rollout, padded_tokens, rollout_plan

WorkRows = list[list[Any]]


@dataclass(frozen=True)
class Whole:
    """The result of a trace at the model's depth.

    Attributes:
        generating_bytes: what is live where the policy begins to generate.
        work: of each phase.
        all_layers: whether all layers were traced.
    """

    events: list[Event]
    generating_bytes: int
    work: dict[str, WorkRows]
    all_layers: bool


class RolloutEstimates(Retracing):
    """Answers for the points of one variant."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request
        self._lengths = Rows(request.rows, request.method).longest
        self._replies: dict[str, PointReply] = {}
        self._too_large = TooLarge(request.limit_bytes)
        self._steps: dict[str | None, tuple[int, WorkRows]] = {}
        # Candidates that differ in the allocator alone follow each other.
        self._latest: tuple[tuple[RolloutTraceRequest, bool], Whole] | None = None
        super().__init__()

    def trace(self) -> None:
        """Trace nothing yet: points are traced when they are asked for."""

    def forget(self) -> None:
        """Drop what was made of fewer layers."""
        self._replies.clear()
        self._steps.clear()
        self._latest = None

    def point(self, point: Point) -> PointReply:
        """Return what one point takes; of one that is larger than one that is too large, at least
        what that one takes."""
        smaller = self._too_large.smaller_than(point)
        if smaller is not None:
            return dataclasses.replace(smaller, at_least=True)
        reply = self.attempt(lambda: self._point(point))
        self._too_large.note(point, reply)
        return reply

    def order(self, points: Sequence[Point]) -> list[int]:
        """Return the smallest micro-batches first."""
        return sorted(range(len(points)), key=lambda index: sizes(points[index]))

    def _point(self, point: Point) -> PointReply:
        key = repr(point)
        if key not in self._replies:
            self._replies[key] = self._estimate(point)
        return self._replies[key]

    def _estimate(self, point: Point) -> PointReply:
        if point.optim is not None:
            return self._with_optimizer(point, point.optim)
        rollout = Rollout(**point.batching)
        plan = rollout_plan(self._lengths, rollout, self._request.rows_total)
        prompts = [self._lengths[index] for index in plan.longest]
        request = self._trace_request(rollout, prompts)
        asleep = point.vllm_asleep_bytes is not None
        if self._latest is None or self._latest[0] != (request, asleep):
            self._latest = (request, asleep), self._whole(request, rollout.length, asleep=asleep)
        whole = self._latest[1]
        with without_collector():
            replay = self._replayed(whole.events, point)
        fields = with_vllm(replay.as_reply_fields(), point, whole.generating_bytes)
        padded = padded_tokens(plan, rollout, self._lengths)
        longest_tokens = (
            rollout.rounds * rollout.completions * (max(self._lengths) + rollout.length)
        )
        return PointReply(
            **fields,
            sample=[(plan.tokens, padded, 1)],
            masked=True,
            method="trace" if whole.all_layers else "scaled trace",
            rollout=whole.work,
            shorter=padded / longest_tokens,
        )

    def _whole(self, request: RolloutTraceRequest, length: int, *, asleep: bool) -> Whole:
        """Return a trace with all of the completions' tokens and all of the model's layers."""
        reply = self._reply(request)
        with without_collector():
            return self._at_depth(request, reply, length, asleep=asleep)

    def _at_depth(
        self, request: RolloutTraceRequest, reply: RolloutTraceReply, length: int, *, asleep: bool
    ) -> Whole:
        traced_layers, layers = reply.layers, self._request.layers
        traced = [tuple(event) for event in reply.events]
        if self._request.config.get("use_vllm"):
            events = without_generations(traced, asleep=asleep)
        else:
            prompt, windows = max(request.prompts), reply.windows
            events = with_all_tokens(traced, request.tokens, length, prompt=prompt, windows=windows)
        all_layers = traced_layers in (0, layers)
        if not all_layers:
            events = with_layers(events, traced_layers, layers)
        further = self._request.teacher_layers - reply.teacher_layers if reply.teacher_layers else 0
        if further > 0:
            events = with_chunks(events, reply.teacher_layers, self._request.teacher_layers)
        growth = gradient_bytes(events) / max(gradient_bytes(traced), 1)
        events = on_devices(events, self._request)
        return Whole(
            events=events,
            generating_bytes=live_at(events, GENERATION),
            work=work_of_phases(
                _with_whole_teacher(reply, further), request.tokens, length, growth, layers
            ),
            all_layers=all_layers and not further,
        )

    def _trace_request(self, rollout: Rollout, prompts: list[int]) -> RolloutTraceRequest:
        enough = self.extent != DIRECT or rollout.length <= TOKENS
        return self._request_of(
            self._fields(rollout),
            prompts=prompts,
            tokens=min(TOKENS, rollout.length) if enough else rollout.length,
            again=rollout.rounds > 1,
            micro_steps=min(rollout.accumulation, 2),
        )

    def _request_of(self, fields: dict[str, Any], **shape: Any) -> RolloutTraceRequest:
        """Return the request of a trace with these fields in its configuration.

        Args:
            shape: of what is generated and trained on.
        """
        return RolloutTraceRequest(
            method=self._request.method,
            config={**self._request.config, **fields},
            model_path=self._request.model_path,
            layers=self._layers_to_trace(),
            cuda=self._request.cuda,
            seed=self._request.seed,
            **shape,
        )

    def _fields(self, rollout: Rollout) -> dict[str, Any]:
        """Return the fields of the traced configuration that say how it generates and trains."""
        fields: dict[str, Any] = {
            "per_device_train_batch_size": rollout.micro_batch,
            "gradient_accumulation_steps": rollout.accumulation,
        }
        if self._request.method != "ppo":
            groups = {
                "generation_batch_size": rollout.completions,
                # A group that is divided among devices: here its part is a group.
                "num_generations": math.gcd(rollout.group, rollout.completions),
            }
            return fields | {n: v for n, v in groups.items() if n in self._request.config}
        # Each epoch is like the first; a mini-batch lets go of what its last micro-step kept.
        parts = self._request.config["num_mini_batches"]
        last_alone = rollout.accumulation > 1 and rollout.accumulation == parts
        return fields | {
            "num_ppo_epochs": 1,
            "num_mini_batches": 2 if last_alone else 1,
            "local_rollout_forward_batch_size": rollout.chunk,
            "whiten_rewards": False,  # it wants mini-batches of eight, which are not traced
        }

    def _with_optimizer(self, point: Point, optim: str) -> PointReply:
        """Return a point with another optimizer, which keeps the same state: its own step's bytes
        and work, from a small generation, in place of the other's. What it reserves beyond that is
        not replayed."""
        reply = self._point(dataclasses.replace(point, optim=None))
        assert reply.rollout is not None
        passing, work = self._step_of(optim)
        replaced, _ = self._step_of(None)
        step = reply.phases.get(STEP, 0) + passing - replaced
        further_bytes = max(step + point.vllm.always_bytes - reply.peak_allocated_bytes, 0)
        return dataclasses.replace(
            reply,
            peak_allocated_bytes=reply.peak_allocated_bytes + further_bytes,
            peak_reserved_bytes=reply.peak_reserved_bytes + further_bytes,
            parts={**reply.parts, TEMPORARIES: reply.parts.get(TEMPORARIES, 0) + further_bytes},
            phases={**reply.phases, STEP: step},
            phase=STEP if further_bytes else reply.phase,
            rollout={**reply.rollout, "optimizer": work},
        )

    def _step_of(self, optim: str | None) -> tuple[int, WorkRows]:
        """Return the bytes that an optimizer's step makes and lets go of, and its work, of the
        whole model."""
        if optim not in self._steps:
            config = self._request.config
            group = config.get("num_generations", 1)
            small = {"optim": optim or config["optim"]} | self._fields(
                Rollout(
                    micro_batch=group,
                    accumulation=1,
                    completions=group,
                    group=group,
                    length=TOKENS,
                    iterations=1,
                    chunk=group,
                    seed=self._request.seed,
                )
            )
            small[METHODS[self._request.method].completion] = TOKENS
            if "beta" in config:
                small["beta"] = 0.0
            reply = self._reply(
                self._request_of(small, prompts=[8], tokens=TOKENS, again=False, micro_steps=1)
            )
            events = [tuple(event) for event in reply.events]
            deep_events = events
            if reply.layers not in (0, self._request.layers):
                deep_events = with_layers(events, reply.layers, self._request.layers)
            last = max(n for n, e in enumerate(deep_events) if e[0] == PHASE and e[1] == STEP)
            passing = live_bytes(passing_of_step(deep_events[last:])).peak_bytes
            growth = gradient_bytes(deep_events) / max(gradient_bytes(events), 1)
            works = [work_from_plain(row) for row in reply.work["optimizer"]]
            self._steps[optim] = passing, grown(works, growth)
        return self._steps[optim]

    def _layers_to_trace(self) -> int | None:
        traces_few = self._request.layers > LAYERS.smallest + 1 and self.extent == FEW_LAYERS
        return LAYERS.smallest if traces_few else None

    def _reply(self, request: RolloutTraceRequest) -> RolloutTraceReply:
        return TraceCache(self._request).reply(request, RolloutTraceReply, trace_rollout)

    def _replayed(self, events: list[Event], point: Point) -> Replay:
        limit = self._request.limit_bytes
        if limit is not None:
            limit = point.vllm.left_of(limit)
        if self._request.cuda is None:
            return on_cpu(events, limit)
        return replayed(events, limit, expandable_segments=point.expandable_segments)


class TooLarge:
    """The points of a variant that were found to be far beyond the limit."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit = limit_bytes or 0
        self._points: list[tuple[Point, PointReply]] = []

    def note(self, point: Point, reply: PointReply) -> None:
        """Remember a point that was traced, if it is far too large."""
        if (reply.missing_bytes or 0) > OVERSIZE_SHARE * self._limit:
            self._points.append((point, reply))

    def smaller_than(self, point: Point) -> PointReply | None:
        """Return what a smaller point takes that is too large; None: there is none."""
        for other, reply in self._points:
            accumulates = point.accumulates or self._keeps_no_gradients(reply)
            if is_larger(dataclasses.replace(point, accumulates=accumulates), other):
                return reply
        return None

    def _keeps_no_gradients(self, reply: PointReply) -> bool:
        """True if what is live is too much by itself, at a moment without gradients: then it does
        not matter whether these are kept for a next micro-step."""
        return reply.peak_allocated_bytes > self._limit and not reply.parts.get(GRADIENTS)


def sizes(point: Point) -> tuple[int, int]:
    """Return how many completions are trained on at once, and how many generated at once."""
    rollout = Rollout(**point.batching)
    return rollout.micro_batch, rollout.at_once


def is_larger(point: Point, other: Point) -> bool:
    """True if a point differs from another one only in that it trains or generates more at once."""
    sizes, others = Rollout(**point.batching), Rollout(**other.batching)
    resized = dataclasses.replace(
        sizes,
        micro_batch=others.micro_batch,
        accumulation=others.accumulation,
        chunk=others.chunk,
    )
    same = dataclasses.replace(point, batching=other.batching, accumulates=other.accumulates)
    return (
        resized == others
        and same == other
        and point.accumulates >= other.accumulates
        and sizes.micro_batch >= others.micro_batch
        and sizes.at_once >= others.at_once
    )


def with_vllm(fields: dict[str, Any], point: Point, resident: int) -> dict[str, Any]:
    """Return fields of a reply, with what vLLM has of the device at the peak of both.

    Args:
        resident: bytes of the training that are live when a generation begins.
    """
    if not point.vllm_bytes:
        return fields
    reserved = fields["peak_reserved_bytes"]
    vllm_bytes = point.vllm.added_peak(reserved, resident)
    if vllm_bytes > point.vllm.always_bytes:
        fields = {**fields, "phase": GENERATION, "operator": "vLLM, awake"}
    return {
        **fields,
        "peak_reserved_bytes": reserved + vllm_bytes,
        "peak_allocated_bytes": fields["peak_allocated_bytes"] + vllm_bytes,
        "parts": {**fields["parts"], VLLM: vllm_bytes},
    }


def _with_whole_teacher(reply: RolloutTraceReply, further: int) -> RolloutTraceReply:
    """Return a reply with the work of so many further layers of a teacher, which are copies."""
    if not further:
        return reply
    copied = chunk(CHUNKS.first)
    work = {
        name: [*rows, *[row for row in rows if work_from_plain(row).region == copied] * further]
        for name, rows in reply.work.items()
    }
    return dataclasses.replace(reply, work=work)


def work_of_phases(
    reply: RolloutTraceReply, tokens: int, length: int, growth: float, layers: int
) -> dict[str, WorkRows]:
    """Return the work of each phase of the whole model.

    Args:
        tokens: how many of a completion were decoded.
        length: tokens of a whole completion; `decode` is that of its middle one.
        growth: trainable bytes of the whole model over those of the traced one.
        layers: of the whole model.
    """
    of = {name: [work_from_plain(row) for row in rows] for name, rows in reply.work.items()}
    every_layer = layers if reply.layers else 0

    def scaled(shapes: list[tuple[int, list[Work]]], size: int) -> WorkRows:
        family = ShapeFamily(shapes=tuple(_shape(at, works) for at, works in shapes))
        return counted_rows(family.work(size, 0, reply.layers, every_layer).items())

    work = {
        name: scaled([(1, of.get(name, []))], 1)
        for name in ("prefill", "scoring", "judging", "update")
    }
    passes = [(tokens - 3, of.get("before", [])), (tokens - 2, of.get("decode", []))]
    mean = max(length // 2, 1)
    two = passes if all(works for _, works in passes) else passes[1:]
    work["decode"] = scaled(two, mean if len(two) > 1 else two[0][0])
    work["optimizer"] = grown(of["optimizer"], growth)
    return work


def _shape(size: int, works: list[Work]) -> Shape:
    outside = [w if w.region >= NOWHERE else dataclasses.replace(w, region=NOWHERE) for w in works]
    return Shape(size=size, chunks=0, events=[], work=outside)
