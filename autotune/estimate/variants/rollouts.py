"""What the points of one path take where the policy generates what it is trained on.

Each point is traced as it is, with few layers and few tokens; nothing is scaled from other sizes,
because how many passes there are depends on them. Runs in a child only.
"""

import dataclasses
import math
from typing import Any

from autotune.estimate.allocator.replay import Replay, on_cpu, replayed
from autotune.estimate.formula.ddp import on_several
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
    NOWHERE,
    PHASE,
    STEP,
    TEMPORARIES,
    VLLM,
    Event,
    Work,
    counted_rows,
    grown,
    live_at,
    live_bytes,
    work_from_plain,
)
from autotune.estimate.records.layers import SMALLEST, Irregular, with_layers
from autotune.estimate.records.shapes import Shape, Template, passing_of_step
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.rollout import trace_rollout
from autotune.estimate.variants.retracing import DIRECT, FEW_LAYERS, Persevering
from autotune.estimate.variants.traces import gradient_bytes
from autotune.job.methods import METHODS
from autotune.training.batch_plan import Rows
from autotune.training.rollout_plan import Rollout, padded_tokens, rollout_plan

Counted = list[list[Any]]


class RolloutEstimates(Persevering):
    """Answers for the points of one path."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request
        self._lengths = Rows(request.rows, request.method).longest
        self._replies: dict[str, PointReply] = {}
        self._steps: dict[str | None, tuple[int, Counted]] = {}
        self.policy: dict[str, int] = {}
        super().__init__()

    def trace(self) -> None:
        """Points are traced when they are asked for."""

    def forget(self) -> None:
        """What was made of fewer layers is of no use any more."""
        self._replies.clear()
        self._steps.clear()

    def point(self, point: Point) -> PointReply:
        """What one point takes."""
        return self.persevere(lambda: self._point(point))

    def _point(self, point: Point) -> PointReply:
        key = repr(point)
        if key not in self._replies:
            self._replies[key] = self._found(point)
        return self._replies[key]

    def _found(self, point: Point) -> PointReply:
        if point.optim is not None:
            return self._with_optimizer(point, point.optim)
        rollout = Rollout(**point.batching)
        plan = rollout_plan(self._lengths, rollout, self._request.rows_total)
        asked = self._asked(point, rollout, [self._lengths[index] for index in plan.longest])
        reply = self._reply(asked)
        have, layers = reply.layers, self._request.layers
        traced = [tuple(event) for event in reply.events]
        elsewhere = bool(self._request.config.get("use_vllm"))
        events = (
            without_generations(traced, asleep=point.vllm_asleep_bytes is not None)
            if elsewhere
            else with_all_tokens(
                traced,
                asked.tokens,
                rollout.length,
                prompt=max(asked.prompts),
                windows=reply.windows,
            )
        )
        if have not in (0, layers):
            events = with_layers(events, have, layers)
        growth = gradient_bytes(events) / max(gradient_bytes(traced), 1)
        events = on_several(events, self._request)
        told = with_vllm(self._replayed(events, point).told(), point, live_at(events, GENERATION))
        padded = padded_tokens(plan, rollout, self._lengths)
        most = rollout.rounds * rollout.completions * (max(self._lengths) + rollout.length)
        return PointReply(
            **told,
            sample=[(plan.tokens, padded, 1)],
            masked=True,
            method="trace" if have in (0, layers) else "scaled trace",
            rollout=self._work(reply, asked.tokens, rollout.length, growth),
            shorter=padded / most,
        )

    def _asked(self, point: Point, rollout: Rollout, prompts: list[int]) -> RolloutTraceRequest:
        own = self._fields(rollout)
        few = SMALLEST if self._few() else None
        enough = self.way != DIRECT or rollout.length <= TOKENS
        return RolloutTraceRequest(
            method=self._request.method,
            config={**self._request.config, **own},
            model_path=self._request.model_path,
            layers=few,
            cuda=self._request.cuda,
            prompts=prompts,
            tokens=min(TOKENS, rollout.length) if enough else rollout.length,
            again=rollout.rounds > 1,
            micro_steps=min(rollout.accumulation, 2),
            seed=self._request.seed,
        )

    def _fields(self, rollout: Rollout) -> dict[str, Any]:
        """The fields of the traced configuration that say how it generates and trains."""
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
        alone = rollout.accumulation > 1 and rollout.accumulation == parts
        return fields | {
            "num_ppo_epochs": 1,
            "num_mini_batches": 2 if alone else 1,
            "local_rollout_forward_batch_size": rollout.chunk,
            "whiten_rewards": False,  # it wants mini-batches of eight, which are not traced
        }

    def _with_optimizer(self, point: Point, optim: str) -> PointReply:
        """A point with another optimizer, which keeps the same state: its own step's bytes and
        work, from a small generation, in place of the other's. What it reserves beyond that is
        not replayed."""
        own = self._point(dataclasses.replace(point, optim=None))
        assert own.rollout is not None
        passing, work = self._step_of(optim)
        before, _ = self._step_of(None)
        step = own.phases.get(STEP, 0) + passing - before
        more = max(step + point.vllm.always_bytes - own.peak_allocated_bytes, 0)
        return dataclasses.replace(
            own,
            peak_allocated_bytes=own.peak_allocated_bytes + more,
            peak_reserved_bytes=own.peak_reserved_bytes + more,
            parts={**own.parts, TEMPORARIES: own.parts.get(TEMPORARIES, 0) + more},
            phases={**own.phases, STEP: step},
            phase=STEP if more else own.phase,
            rollout={**own.rollout, "optimizer": work},
        )

    def _step_of(self, optim: str | None) -> tuple[int, Counted]:
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
            few = SMALLEST if self._few() else None
            reply = self._reply(
                RolloutTraceRequest(
                    method=self._request.method,
                    config={**config, **small},
                    model_path=self._request.model_path,
                    layers=few,
                    cuda=self._request.cuda,
                    prompts=[8],
                    tokens=TOKENS,
                    again=False,
                    micro_steps=1,
                    seed=self._request.seed,
                )
            )
            events = [tuple(event) for event in reply.events]
            whole = events
            if reply.layers not in (0, self._request.layers):
                whole = with_layers(events, reply.layers, self._request.layers)
            last = max(n for n, e in enumerate(whole) if e[0] == PHASE and e[1] == STEP)
            passing = live_bytes(passing_of_step(whole[last:])).peak_bytes
            growth = gradient_bytes(whole) / max(gradient_bytes(events), 1)
            works = [work_from_plain(row) for row in reply.work["optimizer"]]
            self._steps[optim] = passing, grown(works, growth)
        return self._steps[optim]

    def _few(self) -> bool:
        return self._request.layers > SMALLEST + 1 and self.way == FEW_LAYERS

    def _reply(self, asked: RolloutTraceRequest) -> RolloutTraceReply:
        kept = TraceCache(self._request)
        reply = kept.known(asked, RolloutTraceReply) or kept.keep(asked, trace_rollout)
        if asked.layers is not None and reply.layers != asked.layers:
            raise Irregular("it cannot be told where the model's layers are")
        self.policy = reply.policy
        return reply

    def _replayed(self, events: list[Event], point: Point) -> Replay:
        limit = self._request.limit_bytes
        if limit is not None:
            limit = point.vllm.left_of(limit)
        if self._request.cuda is None:
            return on_cpu(events, limit)
        return replayed(events, limit, expandable_segments=point.expandable_segments)

    def _work(
        self, reply: RolloutTraceReply, tokens: int, length: int, growth: float
    ) -> dict[str, Counted]:
        """The work of each phase of the whole model."""
        of = {name: [work_from_plain(row) for row in rows] for name, rows in reply.work.items()}
        scaled = {
            name: self._scaled([(1, of.get(name, []))], 1, reply.layers)
            for name in ("prefill", "scoring", "judging", "update")
        }
        passes = [(tokens - 3, of.get("before", [])), (tokens - 2, of.get("decode", []))]
        mean = max(length // 2, 1)
        two = passes if all(works for _, works in passes) else passes[1:]
        scaled["decode"] = self._scaled(two, mean if len(two) > 1 else two[0][0], reply.layers)
        scaled["optimizer"] = grown(of["optimizer"], growth)
        return scaled

    def _scaled(self, shapes: list[tuple[int, list[Work]]], size: int, have: int) -> Counted:
        template = Template(
            shapes=tuple(
                Shape(size=at, chunks=0, events=[], work=[_outside_chunks(w) for w in works])
                for at, works in shapes
            )
        )
        layers = self._request.layers if have else 0
        return counted_rows(template.work(size, 0, have, layers).items())


def _outside_chunks(work: Work) -> Work:
    return work if work.region >= NOWHERE else dataclasses.replace(work, region=NOWHERE)


def with_vllm(told: dict[str, Any], point: Point, resident: int) -> dict[str, Any]:
    """Fields of a reply, with what vLLM has of the device at the peak of both.

    Args:
        resident: bytes of the training that are live when a generation begins.
    """
    if not point.vllm_bytes:
        return told
    reserved = told["peak_reserved_bytes"]
    beside = point.vllm.added_peak(reserved, resident)
    if beside > point.vllm.always_bytes:
        told = {**told, "phase": GENERATION, "operator": "vLLM, awake"}
    return {
        **told,
        "peak_reserved_bytes": reserved + beside,
        "peak_allocated_bytes": told["peak_allocated_bytes"] + beside,
        "parts": {**told["parts"], VLLM: beside},
    }
