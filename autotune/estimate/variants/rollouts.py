"""What the points of one variant take where the policy generates what it is trained on.

Each point is traced as it is, with few layers and few tokens; nothing is scaled from other sizes,
because how many passes there are depends on them. Runs in a child only.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.allocator.replay import Replay, on_cpu, replayed
from autotune.estimate.formula.ddp import on_devices
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
    PHASE,
    STEP,
    TEMPORARIES,
    Event,
    grown,
    live_at,
    live_bytes,
    work_from_plain,
)
from autotune.estimate.records.layers import LAYERS, with_layers
from autotune.estimate.records.shapes import passing_of_step
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.rollout import trace_rollout
from autotune.estimate.variants.collector import without_collector
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Retracing
from autotune.estimate.variants.rollout_work import WorkRows, work_of_phases
from autotune.estimate.variants.too_large import TooLarge, sizes
from autotune.estimate.variants.traces import gradient_bytes
from autotune.estimate.variants.vllm_peak import with_vllm
from autotune.job.methods import METHODS
from autotune.training.batch_plan import Rows
from autotune.training.rollout_plan import Rollout, padded_tokens, rollout_plan


@dataclass(frozen=True)
class Whole:
    """What a trace comes to at the model's depth.

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
        """Points are traced when they are asked for."""

    def forget(self) -> None:
        """What was made of fewer layers is of no use any more."""
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
        request = self._trace_request(point, rollout, prompts)
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
        growth = gradient_bytes(events) / max(gradient_bytes(traced), 1)
        events = on_devices(events, self._request)
        return Whole(
            events=events,
            generating_bytes=live_at(events, GENERATION),
            work=work_of_phases(reply, request.tokens, length, growth, layers),
            all_layers=all_layers,
        )

    def _trace_request(
        self, point: Point, rollout: Rollout, prompts: list[int]
    ) -> RolloutTraceRequest:
        fields = self._fields(rollout)
        enough = self.way != DIRECT or rollout.length <= TOKENS
        return RolloutTraceRequest(
            method=self._request.method,
            config={**self._request.config, **fields},
            model_path=self._request.model_path,
            layers=self._layers_to_trace(),
            cuda=self._request.cuda,
            prompts=prompts,
            tokens=min(TOKENS, rollout.length) if enough else rollout.length,
            again=rollout.rounds > 1,
            micro_steps=min(rollout.accumulation, 2),
            seed=self._request.seed,
        )

    def _fields(self, rollout: Rollout) -> dict[str, Any]:
        """Return the fields of the traced configuration that say how it generates and trains."""
        fields: dict[str, Any] = {
            "per_device_train_batch_size": rollout.micro_batch,
            "gradient_accumulation_steps": rollout.accumulation,
        }
        if self._request.method != "ppo":
            return fields | {
                "generation_batch_size": rollout.completions,
                # A group that is divided among devices: here its part is a group.
                "num_generations": math.gcd(rollout.group, rollout.completions),
            }
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
        """(bytes that an optimizer's step makes and lets go of, its work), of the whole model."""
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
                RolloutTraceRequest(
                    method=self._request.method,
                    config={**config, **small},
                    model_path=self._request.model_path,
                    layers=self._layers_to_trace(),
                    cuda=self._request.cuda,
                    prompts=[8],
                    tokens=TOKENS,
                    again=False,
                    micro_steps=1,
                    seed=self._request.seed,
                )
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
        traces_few = self._request.layers > LAYERS.smallest + 1 and self.way == FEW_LAYERS
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
