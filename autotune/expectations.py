"""What is expected of each candidate: what children traced, as estimates; and what measurements
teach about them. Pure, but for files that keep it."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.calibration import Coefficients, calibrated
from autotune.estimate.ceilings import Ceilings
from autotune.estimate.closed_form import Dimensions, closed_form
from autotune.estimate.estimates import Estimate, estimate_from_plain, estimated, prior_residual
from autotune.estimate.memory import Residual, refined
from autotune.estimate.path_speed import PathSpeed
from autotune.estimate.protocol import EstimateReply, engine_is_traced
from autotune.estimate.rollout_time import RolloutTime
from autotune.exchanging import trained_parameters, with_exchange
from autotune.facts import Facts
from autotune.hosting import with_host
from autotune.job import Job
from autotune.methods import METHODS
from autotune.path_tasks import PathTask
from autotune.probe.record import Record
from autotune.probe.throughput import passes
from autotune.space.knobs import Candidate
from autotune.space.settings import settings
from autotune.space.sharding import (
    DEEPSPEED,
    FSDP,
    OPTIMIZER_OFFLOAD,
    STRATEGY,
    Sharding,
    sharding_of,
)
from autotune.space.vllm import vllm_share
from autotune.training.rounds import completion_length

TYPICAL_PROCESS = 450 * 2**20
"""What a process with the stack holds (447 MiB were seen), where no child could tell."""
HOPELESS = 0.95
"""Candidates that run out of memory with more than this probability are never probed."""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The estimates of a space, and what is assumed of the device before it was measured.

    Attributes:
        estimates: by the candidate's key.
        prior: what a process takes beyond the estimate, before any probe.
        limit_bytes: what a probe may take.
    """

    estimates: Mapping[str, Estimate]
    prior: Residual
    limit_bytes: int

    def residual(self, records: Sequence[Record]) -> Residual:
        """What the probes so far say of the estimates: an offset, a spread, how sure both are."""
        estimated_bytes, measured_bytes = [], []
        for record in records:
            estimate = self.estimates.get(record.candidate.key)
            measurement = record.measurement
            if estimate is None or measurement is None or measurement.outcome != "ok":
                continue
            if estimate.traced and measurement.peak_memory_bytes is not None:
                estimated_bytes.append(float(estimate.own_reserved_bytes))
                own = measurement.peak_memory_bytes - (measurement.vllm_bytes or 0)
                measured_bytes.append(float(own))
        return refined(self.prior, estimated_bytes, measured_bytes)

    def speed(self, records: Sequence[Record]) -> Coefficients:
        """What the probes so far say of the estimated step times: a factor for each of their parts,
        and how sure these are."""
        parts, measured_s = [], []
        for record in records:
            estimate = self.estimates.get(record.candidate.key)
            measurement = record.measurement
            if estimate is None or measurement is None or measurement.outcome != "ok":
                continue
            if estimate.time_parts is not None and measurement.step_time_s:
                parts.append(estimate.time_parts)
                measured_s.append(measurement.step_time_s)
        return calibrated(parts, measured_s)

    def probability_of_oom(self, candidate: Candidate, residual: Residual) -> float | None:
        """Probability that the candidate needs more than the limit; None: nothing is known."""
        estimate = self.estimates.get(candidate.key)
        if estimate is None:
            return None
        own = estimate.sigma_bytes / max(estimate.peak_memory_bytes, 1)
        if not estimate.traced:
            residual = dataclasses.replace(
                residual, relative_sigma=max(residual.relative_sigma, own)
            )
        left = self.limit_bytes - estimate.vllm_bytes
        return residual.probability_above(estimate.own_reserved_bytes, left)

    def hopeless(
        self, candidates: Sequence[Candidate], records: Sequence[Record]
    ) -> frozenset[str]:
        """Keys of candidates that are not worth a probe; never of all.

        Where nothing is expected to fit, the leanest is left: a measurement has to say so.
        """
        residual = self.residual(records)
        out = {
            candidate.key
            for candidate in candidates
            if self.beyond_host(candidate.key)
            or not self._at_most(candidate)
            and (self.probability_of_oom(candidate, residual) or 0.0) > HOPELESS
        }
        if len(out) == len(candidates) and candidates:
            out.discard(min(candidates, key=self._leanness).key)
        return frozenset(out)

    def beyond_host(self, key: str) -> bool:
        """Whether a candidate is as good as certain to take more of the host than there is."""
        estimate = self.estimates.get(key)
        return estimate is not None and (estimate.p_host_oom or 0.0) > HOPELESS

    def _leanness(self, candidate: Candidate) -> tuple[bool, int]:
        estimate = self.estimates[candidate.key]
        return self.beyond_host(candidate.key), estimate.peak_memory_bytes

    def _at_most(self, candidate: Candidate) -> bool:
        estimate = self.estimates.get(candidate.key)
        return estimate is not None and estimate.at_most

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "schema": 1,
            "prior": dataclasses.asdict(self.prior),
            "limit_bytes": self.limit_bytes,
            "estimates": {
                key: {**estimate.plain(), "fits": estimate.fits}
                for key, estimate in self.estimates.items()
            },
        }


def expectations_from_plain(data: Mapping[str, Any]) -> Expectations:
    """The expectations that JSON data hold."""
    return Expectations(
        estimates={key: estimate_from_plain(one) for key, one in data["estimates"].items()},
        prior=Residual(**data["prior"]),
        limit_bytes=data["limit_bytes"],
    )


def prior_of(replies: Collection[EstimateReply], facts: Facts) -> Residual:
    """What is assumed of a process before any was measured."""
    held = max((reply.process_bytes for reply in replies), default=0) or TYPICAL_PROCESS
    return prior_residual(facts.device.kind, held)


def estimates_of(
    tasks: Sequence[PathTask],
    replies: Sequence[EstimateReply],
    job: Job,
    facts: Facts,
    limit: int,
    *,
    ceilings: Ceilings | None = None,
    residual: Residual | None = None,
) -> dict[str, Estimate]:
    """The estimate of each candidate, by its key: by trace, or by formula where there is none."""
    found = {}
    for task, reply in zip(tasks, replies, strict=True):
        count = job.devices.count
        known = residual or prior_residual(facts.device.kind, reply.process_bytes, count)
        speed: PathSpeed | RolloutTime | None = None
        if ceilings is not None and reply.problem is None:
            online = METHODS[job.method].online
            speed = RolloutTime(ceilings) if online else PathSpeed(reply, ceilings)
        for candidate, replaced, place in zip(
            task.candidates, task.replaced, task.places, strict=True
        ):
            if reply.problem is not None:
                estimate = by_formula(job, facts, candidate, known, limit, reply.problem)
            else:
                point, layers = reply.points[place], facts.model.layers or 1
                formulas = formulas_of(job, facts, sharding_of(candidate.values, count))
                estimate = estimated(point, replaced + formulas, known, limit, layers)
            if speed is not None:
                expected = speed.speed(
                    task.request.points[place],
                    reply.points[place],
                    candidate.gradient_accumulation_steps,
                    offloaded_bytes=estimate.offloaded_bytes,
                )
                once = beforehand(job, facts, candidate)
                estimate = dataclasses.replace(
                    estimate,
                    step_time_s=expected.step_time_s,
                    tokens_per_s=count * expected.tokens_per_s / (1 + once),
                    time_parts=expected.parts,
                )
            estimate = with_exchange(estimate, job, facts, candidate)
            engine = (
                reply.problem is None and task.request.spread and not METHODS[job.method].online
            )
            found[candidate.key] = with_host(
                estimate,
                job,
                facts,
                candidate,
                process_bytes=reply.process_bytes or TYPICAL_PROCESS,
                traced_bytes=reply.points[place].host_bytes if engine else None,
            )
    return found


def formulas_of(job: Job, facts: Facts, sharding: Sharding) -> tuple[str, ...]:
    """What of a way to spread a training is not traced, by the names of its fields: of deep models,
    and of methods that generate."""
    kind = sharding.distributed_type
    traced = engine_is_traced(kind, facts.model.layers or 0) and not METHODS[job.method].online
    if kind not in (DEEPSPEED, FSDP) or traced:
        return ()
    own = "zero_stage" if sharding.distributed_type == DEEPSPEED else STRATEGY
    return (own, *((OPTIMIZER_OFFLOAD,) if sharding.offloads else ()))


def beforehand(job: Job, facts: Facts, candidate: Candidate) -> float:
    """What is computed once before the training, as a share of the training's time.

    The forward passes of a reference over the data, as a part of those of a micro-step: a third
    for DPO (a quarter with checkpointing), a half for KTO, which has two. Known error: it counts
    passes, not times; probes measure it.
    """
    config = settings(job, facts, candidate, "out").config
    if not config.get("precompute_ref_log_probs"):
        return 0.0
    often = passes(config, candidate.global_batch * job.devices.count, facts.data.rows)
    # Forward passes; a backward pass is two, and with checkpointing three.
    forward = 2 if candidate.values.get("loss_type") == "kto" else 1
    backward = 3 if candidate.values.get("gradient_checkpointing") else 2
    return forward / (forward + backward) / often


def by_formula(
    job: Job, facts: Facts, candidate: Candidate, residual: Residual, limit: int, why: str
) -> Estimate:
    """The estimate of a candidate that could not be traced; `why` not."""
    # The knobs by their own names: this version of the stack may call a field something else.
    config = {**settings(job, facts, candidate, "out").config, **candidate.values}
    model, length = facts.model, facts.data.longest
    if isinstance(cut := config.get("max_length"), int):
        full = config.get("packing") or facts.data.sampled
        length = cut if full else min(length, cut)
    if METHODS[job.method].online:
        length += completion_length(config)
    share = vllm_share(config, facts.device.total_bytes)
    judged = METHODS[job.method].value_model  # and by a reward model, both taken to be as large
    words = model.vocab_size or 32000
    hidden, layers = model.hidden_size or 1024, model.layers or 1
    size = Dimensions(
        parameters=model.parameters * (1 + has_reference(job, config) + 2 * judged),
        trained=trained_parameters(job, facts, config) + judged * model.parameters,
        layers=layers,
        hidden=hidden,
        heads=max(hidden // 128, 1),
        vocabulary=1 if METHODS[job.method].classifier else words,
        tokens=METHODS[job.method].sequences * candidate.micro_batch * length,
        length=candidate.micro_batch * length if config.get("padding_free") else length,
        fused_head=facts.stack.fused_head,
        # In float32, and three times while those of the next update are put together.
        kept_logits_bytes=3 * 4 * candidate.global_batch * completion_length(config) * words
        if judged
        else 0,
        vllm=share,
        judges=2 * judged * model.parameters,
    )
    return closed_form(config, size, residual, limit, why)


def has_reference(job: Job, config: Mapping[str, Any]) -> bool:
    """Whether a model of its own is kept as the reference."""
    if METHODS[job.method].value_model:
        return job.tuning == "full" or bool(config.get("copy_reference"))
    if METHODS[job.method].online:
        return bool(config.get("beta")) and job.tuning == "full"
    precomputed = config.get("precompute_ref_log_probs")
    return bool(METHODS[job.method].reference) and job.tuning == "full" and not precomputed
