"""A first estimate of a plan, by arithmetic alone: nothing of the stack is loaded for it.

config.json -> shape -> facts -> bind the space -> memory and speed by formula -> the best choice

It is made where all that it needs is known without a child: one GPU, a method that neither
generates nor compares with a reference (of DPO the speed was 49% off), a model whose shape is built
in or lies here and is of a known family. Else there is none.
"""

import dataclasses
from collections.abc import Sequence

from autotune.errors import MachineError, UserError
from autotune.estimate.estimate import Estimate, prior_residual
from autotune.estimate.formula.closed_form import STATES, estimate_of_parts
from autotune.estimate.formula.decoder import DecoderStep, micro_step, optimizer_step, peak_parts
from autotune.estimate.speed.ceilings import Ceilings, ceilings_of_kind
from autotune.estimate.speed.step_time import step_parts
from autotune.facts import Facts, devices, stack
from autotune.facts.data import DataFacts, draw_lengths, rows_made
from autotune.facts.device_kinds import DeviceKind, known_kind, rules_of
from autotune.facts.model_shape import ModelShape, model_shape
from autotune.job.job import Job, KnobValue, Lengths, NoData
from autotune.job.methods import METHODS
from autotune.plan.choices import Choice, choices, leanness
from autotune.plan.device import device_facts, planned_limit
from autotune.plan.exchange import is_wide
from autotune.plan.narrowing import planned_space
from autotune.plan.progress import FirstEstimate, Progress
from autotune.space.attention import FLASH, is_flash
from autotune.space.checkpointing import CHECKPOINTING, EVERY, share_again
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import base_bytes
from autotune.space.sharding.sharding import NONE
from autotune.space.trl_config import CUDNN_LAST, USUAL_TORCH, Settings

_KNOWN: dict[str, tuple[KnobValue, ...]] = {
    "attn_implementation": (None, "sdpa", *(flash.value for flash in FLASH)),
    "activation_offloading": (None, False),
    CHECKPOINTING: (None, False, True, *EVERY),
    "torch_compile": (None, False),
    "torch_empty_cache_steps": (None,),
    "distributed_type": (None, NONE),
}
"""The values of some knobs that the formula counts with."""
LEAST_PARAMETERS = 10**8
"""Below that nothing is said: the host decides about the speed of so small a model, and none was
compared."""
_LEAST = (8, 0)
"""Compute capability below which nothing is said: none was compared, and of a T4 the speed was 2.7
times its trace's."""
_SIGMA = 0.07
"""Relative standard deviation of the memory: nine in ten are within 8% of their traces, within 12%
where nothing was fitted."""
_GROUPED = 1.03
"""Padded tokens over real ones where rows are grouped by length."""


def show_first(
    job: Job,
    definition: SpaceDefinition,
    kind: DeviceKind | None,
    progress: Progress | None,
    *,
    assume: bool,
) -> None:
    """Show the best choice by formula, where there is one, and a progress to show it."""
    first = progress and first_estimate(job, definition, kind, assume=assume)
    if progress and first:
        progress.by_formula(first)


def first_estimate(
    job: Job, definition: SpaceDefinition, kind: DeviceKind | None, *, assume: bool
) -> FirstEstimate | None:
    """Return the best choice of a job by formula; None: something is not known without the stack,
    or the plan will say what is wrong.

    Args:
        kind: of the device; None: that of this machine.
        assume: whether every package is taken to be on its machine.
    """
    method, training = METHODS[job.method], job.training
    unknown = training.get("trust_remote_code") or training.get("model_revision")
    unlike = method.online or method.reference or job.devices.total > 1
    if unlike or unknown or stack.missing(job.method) or not stack.fused_head():
        return None
    shape, lengths = model_shape(job.model, classifier=method.classifier), lengths_of(job)
    if shape is None or lengths is None or shape.facts.parameters < LEAST_PARAMETERS:
        return None
    try:
        device = devices.detect(job.devices.kind, job.devices.index)
        facts = Facts(
            model=shape.facts,
            data=data_of(lengths),
            device=device,
            stack=stack.installed(job.method),
        )
        facts = device_facts(facts, kind, assume=assume)
        if facts.device.kind != "cuda" or (facts.device.capability or _LEAST) < _LEAST:
            return None
        limit, space = planned_limit(job, facts), planned_space(definition, job, facts)
    except (UserError, MachineError):
        return None
    kind = kind or known_kind(facts.device.name, facts.device.total_bytes)
    rates = None if kind is None else ceilings_of_kind(kind)
    pairs = [
        (candidate, by_arithmetic(space.settings(candidate), shape, lengths, rates, limit))
        for candidate in space.candidates
        if is_known(candidate)
    ]
    if not pairs:
        return None
    best = choices(space, pairs, devices=1)[0]
    if not best.estimate.fits:
        candidate, estimate = min(pairs, key=leanness)
        best = Choice(candidate=candidate, estimate=estimate, folded=1)
    row_length = None if isinstance(job.dataset, NoData) else lengths[-1]
    return FirstEstimate(best=best, space=space, limit_bytes=limit, row_length=row_length)


def is_known(candidate: Candidate) -> bool:
    """True if the formula knows all that a candidate sets."""
    return not any(candidate.values.get(name) not in known for name, known in _KNOWN.items())


def lengths_of(job: Job) -> list[int] | None:
    """Return the lengths of rows, ascending: those that a survey makes of stated ones, else one of
    full length; None: it has no end."""
    if isinstance(job.dataset, NoData):
        stated = job.dataset.lengths.model_dump()
        return sorted(draw_lengths(stated, rows_made(stated)))
    return None if job.max_length is None else [job.max_length]


def data_of(lengths: Sequence[int]) -> DataFacts:
    """Return the facts of rows of such lengths."""
    rows = Lengths(max=lengths[-1]).rows
    return DataFacts(
        source="",
        form="lengths",
        rows=rows,
        rows_measured=rows,
        test_rows=0,
        mean_length=sum(lengths) / len(lengths),
        quantiles={f"p{q}": lengths[(len(lengths) - 1) * q // 100] for q in (1, 10, 50, 90, 99)},
        longest=lengths[-1],
    )


def by_arithmetic(
    settings: Settings,
    shape: ModelShape,
    lengths: Sequence[int],
    rates: Ceilings | None,
    limit: int,
) -> Estimate:
    """Return the estimate of a candidate by formula."""
    cut = settings.config.get("max_length")
    lengths = [min(length, cut) if isinstance(cut, int) else length for length in lengths]
    worst = decoder_step(settings, shape, lengths)
    residual = prior_residual(settings.facts.device, 0)
    residual = dataclasses.replace(residual, relative_sigma=_SIGMA)
    estimate = estimate_of_parts(peak_parts(worst), residual, limit, "by formula")
    if rates is None:
        return estimate
    real, usual = _usual(worst, settings, lengths)
    accumulation = settings.candidate.gradient_accumulation_steps
    step = step_parts([micro_step(usual, rates)], optimizer_step(usual, rates), accumulation)
    return dataclasses.replace(
        estimate,
        step_time_s=step.total,
        tokens_per_s=accumulation * real / step.total,
        time_parts=step,
    )


def decoder_step(settings: Settings, shape: ModelShape, lengths: Sequence[int]) -> DecoderStep:
    """Return the worst micro-step of a candidate: the longest rows together."""
    job, config = settings.job, {**settings.config, **settings.candidate.values}
    method, rows = METHODS[job.method], settings.candidate.micro_batch
    wide, full = is_wide(config), job.tuning == "full"
    width, rank = 4 if wide else 2, int(config.get("lora_r") or 16)
    trained = shape.facts.parameters if full else shape.adapter_parameters(rank)
    base = base_bytes(shape.facts, config)
    weights = base or width * shape.facts.parameters
    flash = is_flash(config.get("attn_implementation"))
    packed = bool(config.get("packing"))
    flat, longest = packed or bool(config.get("padding_free")), lengths[-1]
    tokens = method.sequences * rows * longest
    if flat and not packed and rows < len(lengths):
        tokens = method.sequences * sum(lengths[-rows:])
    capability = settings.facts.device.capability
    return DecoderStep(
        shape=shape,
        vocabulary=1 if method.classifier else shape.facts.vocab_size or 1,
        weights_bytes=weights + (0 if full else 4 * trained),
        trained=trained,
        state_bytes=STATES.get(str(config.get("optim")), 2 * (width if full else 4)),
        tokens=tokens,
        length=tokens if flat and not flash else longest,
        masked=not flash and (flat or (rows > 1 and lengths[0] != longest)),
        flat=flat,
        wide=wide,
        half=not wide or bool(config.get("bf16") or config.get("fp16")),
        full=full,
        rank=rank,
        quantised=base is not None,
        again=share_again(config.get(CHECKPOINTING, True), shape.facts.layers or 1),
        liger=bool(config.get("use_liger_kernel")),
        cudnn=not flash
        and CUDNN_LAST not in settings.environment
        and capability is not None
        and rules_of(capability, USUAL_TORCH).cudnn_sdpa_first,
        accumulates=settings.candidate.gradient_accumulation_steps > 1,
    )


def _usual(
    worst: DecoderStep, settings: Settings, lengths: Sequence[int]
) -> tuple[float, DecoderStep]:
    """Return (real tokens of a micro-batch, its step) as they are on average."""
    rows, count = settings.candidate.micro_batch, len(lengths)
    sequences = METHODS[settings.job.method].sequences
    mean = sum(lengths) / count
    if settings.config.get("packing"):
        return worst.tokens, worst
    # The second sequence of a pair has 0.6 to 1 times as many tokens (`facts/data.py`).
    real = (1 + 0.8 * (sequences - 1)) * mean * rows
    if worst.flat:
        tokens = max(round(real), 1)
        length = tokens if worst.masked else max(round(mean), 1)
        return real, dataclasses.replace(worst, tokens=tokens, length=length)
    length = round(_GROUPED * mean)
    if settings.config.get("train_sampling_strategy") != "group_by_length":
        # The longest of so many: by how likely each is to be that.
        shares = (((n + 1) / count) ** rows - (n / count) ** rows for n in range(count))
        length = round(sum(map(lambda share, one: share * one, shares, lengths)))
    return real, dataclasses.replace(worst, tokens=length * rows * sequences, length=length)
