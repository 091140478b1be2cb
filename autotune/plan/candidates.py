"""The estimate of each candidate of a job, from what children traced. Pure."""

import dataclasses
from collections.abc import Sequence

from autotune.estimate.estimate import Estimate, estimated, prior_residual
from autotune.estimate.formula.closed_form import Dimensions, closed_form
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.residual import Residual
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.offline import PathSpeed, Speed
from autotune.estimate.speed.rollouts import RolloutTime
from autotune.estimate.variant import engine_is_traced
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.exchange import trained_parameters, with_exchange, with_server
from autotune.plan.host_memory import with_host
from autotune.plan.variants import PathTask
from autotune.probe.throughput import passes
from autotune.space.knobs import Candidate
from autotune.space.reference_model import has_reference
from autotune.space.settings import settings
from autotune.space.sharding.processes import processes_of, rows_of_step
from autotune.space.sharding.sharding import (
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    FSDP,
    OPTIMIZER_OFFLOAD,
    Sharding,
    sharding_of,
)
from autotune.space.vllm.colocated import vllm_share
from autotune.training.rollout_plan import completion_length

TYPICAL_PROCESS = 450 * 2**20
"""What a process with the stack holds (447 MiB were seen), where no child could tell."""


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
        devices = job.devices.total
        known = residual or prior_residual(facts.device.kind, reply.process_bytes, devices)
        speed: PathSpeed | RolloutTime | None = None
        if ceilings is not None and reply.problem is None:
            online = METHODS[job.method].online
            speed = RolloutTime(ceilings) if online else PathSpeed(reply, ceilings)
        for candidate, replaced, place in zip(
            task.candidates, task.replaced, task.places, strict=True
        ):
            sharding = sharding_of(candidate.values, devices)
            if reply.problem is not None:
                estimate = by_formula(job, facts, candidate, known, limit, reply.problem)
            else:
                formulas = formulas_of(job, sharding, by_formula=reply.by_formula)
                adjusted = replaced + formulas
                estimate = _of_point(reply, place, adjusted, known, limit, facts)
            if speed is not None:
                expected = speed.speed(
                    task.request.points[place],
                    reply.points[place],
                    candidate.gradient_accumulation_steps,
                    offloaded_bytes=estimate.offloaded_bytes,
                )
                estimate = _at_speed(estimate, expected, job, facts, candidate)
            estimate = with_exchange(estimate, job, facts, candidate)
            estimate = with_server(estimate, job, facts, candidate)
            kind = sharding.distributed_type
            told = reply.problem is None and not reply.by_formula
            engine = told and engine_is_traced(job.method, kind)
            found[candidate.key] = with_host(
                estimate,
                job,
                facts,
                candidate,
                process_bytes=reply.process_bytes or TYPICAL_PROCESS,
                traced_bytes=reply.points[place].host_bytes if engine else None,
            )
    return found


def _of_point(
    reply: EstimateReply,
    place: int,
    adjusted: tuple[str, ...],
    residual: Residual,
    limit: int,
    facts: Facts,
) -> Estimate:
    """The estimate of a candidate from its point; `adjusted`: what was not traced as it is."""
    point, layers = reply.points[place], facts.model.layers or 1
    estimate = estimated(point, adjusted, residual, limit, layers)
    if reply.engine_problem is None:
        return estimate
    why = f"the engine could not be traced ({reply.engine_problem})"
    return dataclasses.replace(estimate, notes=(*estimate.notes, why))


def _at_speed(
    estimate: Estimate, expected: Speed, job: Job, facts: Facts, candidate: Candidate
) -> Estimate:
    """An estimate with the speed of each of several processes.

    The rates of a CPU are those of all its cores, which its processes share; what it takes to
    dispatch, each does beside the others.
    """
    parts, processes = expected.parts, processes_of(candidate.values, job)
    if facts.device.kind == "cpu":
        parts = dataclasses.replace(parts.times(processes), overhead_s=parts.overhead_s)
    once = beforehand(job, facts, candidate)
    slower = parts.total / expected.parts.total if expected.parts.total else 1.0
    return dataclasses.replace(
        estimate,
        step_time_s=slower * expected.step_time_s,
        tokens_per_s=processes * expected.tokens_per_s / slower / (1 + once),
        time_parts=parts,
    )


def formulas_of(job: Job, sharding: Sharding, *, by_formula: bool = False) -> tuple[str, ...]:
    """What of a way to spread a training is not traced, by the names of its fields: of methods that
    generate, and of others where the reply says so."""
    kind = sharding.distributed_type
    traced = engine_is_traced(job.method, kind) and not by_formula
    if kind not in (DEEPSPEED, FSDP) or traced:
        return ()
    own = "zero_stage" if sharding.distributed_type == DEEPSPEED else DISTRIBUTED_TYPE
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
    often = passes(config, rows_of_step(candidate, job), facts.data.rows)
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
        unquantised=sum(model.unquantised.values()) * (1 + has_reference(job, config)) or None,
    )
    return closed_form(config, size, residual, limit, why)
