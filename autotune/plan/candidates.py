"""The estimate of each candidate of a job, from what children traced. Pure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate, estimated, prior_residual
from autotune.estimate.formula.closed_form import Dimensions, closed_form
from autotune.estimate.formula.devices import with_loading
from autotune.estimate.formula.loading import on_device
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.residual import Residual
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.variants import RolloutTime, VariantSpeed
from autotune.estimate.variant import engine_is_traced
from autotune.job.methods import METHODS
from autotune.plan.exchange import (
    trained_parameters,
    with_exchange,
    with_paging,
    with_row_buffers,
    with_server,
    without_cost,
)
from autotune.plan.host_memory import loaded_models, with_host
from autotune.plan.variants import Member, VariantTask
from autotune.probe.throughput import passes
from autotune.space.checkpointing import CHECKPOINTING, share_again
from autotune.space.sharding.sharding import (
    CP_SIZE,
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    FSDP,
    OPTIMIZER_OFFLOAD,
    SP_SIZE,
)
from autotune.space.trl_config import Settings, has_reference
from autotune.training.rollout_plan import completion_length

TYPICAL_PROCESS = 450 * 2**20
"""Memory that a process with the stack holds (447 MiB were measured), where no child measured
it."""

KnownSpeeds = dict[tuple[int, ...], tuple[Ceilings, VariantSpeed]]
"""Speeds of variants, by the identity of their work: a work is too long for a key."""


def estimates_of(
    tasks: Sequence[VariantTask],
    replies: Sequence[EstimateReply],
    limit: int,
    *,
    ceilings: Ceilings | None = None,
    speeds: KnownSpeeds | None = None,
) -> dict[str, Estimate]:
    """Return the estimate of each candidate, by its key: by trace, or by formula where there is
    none.

    Args:
        limit: bytes a process may take on the device.
        ceilings: rates of the device; None: no speeds.
        speeds: what was worked out before; what is worked out here is added.
    """
    known = {} if speeds is None else speeds
    answers = (
        _Answer(task, reply, speed_of(task.request.method, reply, ceilings, known))
        for task, reply in zip(tasks, replies, strict=True)
    )
    return {
        member.candidate.key: _estimate(answer, member, limit)
        for answer in answers
        for member in answer.task.members
    }


def speed_of(
    method: str, reply: EstimateReply, ceilings: Ceilings | None, known: KnownSpeeds
) -> VariantSpeed | RolloutTime | None:
    """Return the speeds of a variant's points; None: the ceilings are not known, or the variant
    could not be traced.

    By formula, a dozen engines have the very work that was traced without one: what was worked out
    for one of them serves the others.
    """
    if ceilings is None or reply.problem is not None:
        return None
    if METHODS[method].online:
        return RolloutTime(ceilings)
    works = (reply.shapes, reply.copied_shapes, reply.optimizer_work, ceilings)
    key = tuple(id(work) for work in works)
    if key not in known:  # which keeps them, so that no other gets their identity
        known[key] = ceilings, VariantSpeed(reply, ceilings)
    return known[key][1]


@dataclass(frozen=True)
class _Answer:
    """A task, its reply, and the speed that follows from it; None: none does."""

    task: VariantTask
    reply: EstimateReply
    speed: VariantSpeed | RolloutTime | None


def _estimate(answer: _Answer, member: Member, limit: int) -> Estimate:
    """Return an estimate: first the memory of a process, then its speed, then the needs of links,
    server and host."""
    estimate = _of_process(answer, member, limit)
    estimate = _with_speed(estimate, answer, member)
    estimate = with_emptied_cache(estimate, member.settings)
    estimate = with_paging(estimate, member.settings)
    estimate = with_exchange(estimate, member.settings)
    estimate = with_server(estimate, member.settings)
    return _with_host(estimate, answer, member)


def _of_process(answer: _Answer, member: Member, limit: int) -> Estimate:
    """Return the estimate of one process on its device: from the member's point, or by formula."""
    reply, settings = answer.reply, member.settings
    device, devices = settings.facts.device, settings.job.devices.total
    residual = prior_residual(device, reply.process_bytes, devices)
    if reply.problem is not None:
        return by_formula(settings, residual, limit, reply.problem)
    adjusted = member.replaced + formulas_of(settings, by_formula=reply.by_formula)
    layers = settings.facts.model.layers or 1
    loaded = on_device(loaded_models(settings), settings.sharding, device.kind)
    point = with_row_buffers(reply.points[member.place], settings)
    point = with_loading(point, loaded, limit)
    estimate = estimated(point, adjusted, residual, limit, layers)
    if reply.engine_problem is None:
        return estimate
    reason = reply.engine_problem.partition(":")[0]
    note = f"the engine could not be traced with these kernels ({reason}): it is by formula"
    return dataclasses.replace(estimate, notes=(*estimate.notes, note))


def _with_speed(estimate: Estimate, answer: _Answer, member: Member) -> Estimate:
    """Return an estimate with the speed of each of several processes.

    The rates of a CPU are those of all its cores, which its processes share; what it takes to
    dispatch, each does beside the others.
    """
    if answer.speed is None or estimate.at_least:
        return estimate
    settings = member.settings
    expected = answer.speed.speed(
        answer.task.request.points[member.place],
        answer.reply.points[member.place],
        settings.candidate.gradient_accumulation_steps,
        offloaded_bytes=estimate.offloaded_bytes,
    )
    parts, processes = expected.parts, settings.processes
    # Of each row a part was traced: its tokens look at all of the row.
    parts = dataclasses.replace(parts, attention_s=parts.attention_s * settings.sharding.row_parts)
    if settings.facts.device.kind == "cpu":
        parts = dataclasses.replace(parts.times(processes), overhead_s=parts.overhead_s)
    slower = parts.total / expected.parts.total if expected.parts.total else 1.0
    return dataclasses.replace(
        estimate,
        step_time_s=slower * expected.step_time_s,
        tokens_per_s=processes * expected.tokens_per_s / slower / (1 + reference_logps(settings)),
        time_parts=parts,
    )


def with_emptied_cache(estimate: Estimate, settings: Settings) -> Estimate:
    """Return an estimate with a note where it leaves out the time of emptying the allocator's
    cache."""
    if not settings.config.get("torch_empty_cache_steps"):
        return estimate
    return without_cost(estimate, "emptying the cache")


def _with_host(estimate: Estimate, answer: _Answer, member: Member) -> Estimate:
    """Return an estimate with what all processes take of the host."""
    reply, settings = answer.reply, member.settings
    engine = engine_is_traced(settings.job.method, settings.sharding.distributed_type)
    traced = engine and reply.problem is None and not reply.by_formula
    return with_host(
        estimate,
        settings,
        process_bytes=reply.process_bytes or TYPICAL_PROCESS,
        traced_bytes=reply.points[member.place].host_bytes if traced else None,
    )


def formulas_of(settings: Settings, *, by_formula: bool = False) -> tuple[str, ...]:
    """Return the parts of a sharding that are not traced, by the names of its fields: for methods
    that generate, and for others where the reply names them."""
    sharding, kind = settings.sharding, settings.sharding.distributed_type
    shared = [(CP_SIZE, sharding.cp_size), (SP_SIZE, sharding.sp_size)]
    fields = tuple(name for name, size in shared if size > 1)
    traced = engine_is_traced(settings.job.method, kind) and not by_formula
    if kind not in (DEEPSPEED, FSDP) or traced:
        return fields
    field = "zero_stage" if kind == DEEPSPEED else DISTRIBUTED_TYPE
    return (field, *((OPTIMIZER_OFFLOAD,) if sharding.offloads else ()), *fields)


def reference_logps(settings: Settings) -> float:
    """Return the time of what is computed once before the training, as a share of the training's
    time.

    The forward passes of a reference over the data, as a part of those of a micro-step: a third
    for DPO (a quarter with checkpointing), a half for KTO, which has two. Known error: it counts
    passes, not times; probes measure it.
    """
    config, values = settings.config, settings.candidate.values
    if not config.get("precompute_ref_log_probs"):
        return 0.0
    rows = settings.candidate.global_batch * settings.sharding.replicas
    often = passes(config, rows, settings.facts.data.rows)
    # Forward passes; a backward pass is two, and with checkpointing three.
    forward = 2 if values.get("loss_type") == "kto" else 1
    backward = 2 + share_again(values.get(CHECKPOINTING), settings.facts.model.layers or 1)
    return forward / (forward + backward) / often


def by_formula(settings: Settings, residual: Residual, limit: int, reason: str) -> Estimate:
    """Return the estimate of a candidate that could not be traced, for `reason`."""
    # The knobs by their own names: this version of the stack may call a field something else.
    job, facts, candidate = settings.job, settings.facts, settings.candidate
    config = {**settings.config, **candidate.values}
    model, length = facts.model, facts.data.longest
    if isinstance(max_length := config.get("max_length"), int):
        full = config.get("packing") or facts.data.sampled
        length = max_length if full else min(length, max_length)
    if METHODS[job.method].online:
        length += completion_length(config)
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
        vllm=settings.vllm,
        teacher_bytes=settings.teacher_bytes,
        judges=2 * judged * model.parameters,
        unquantised=sum(model.unquantised.values()) * (1 + has_reference(job, config)) or None,
    )
    return closed_form(config, size, residual, limit, reason)
