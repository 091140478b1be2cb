"""The part of a search space that a plan looks at: it leaves out the values that no estimate
prefers. Pure.

A run probes these values all the same; so does `autotune plan --all`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.plan.variants import traces_liger
from autotune.probe.throughput import passes
from autotune.space.attention import ATTENTION, FLASH, flash_facts, is_flash
from autotune.space.bind import SearchSpace, bind
from autotune.space.checkpointing import keeps_activations_away
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import COMPILES, EXPERT_KERNELS, SAMPLING, Candidate, Knob
from autotune.space.sharding.sharding import sharding_of

SAME_ESTIMATES = ("dataloader_num_workers", COMPILES, EXPERT_KERNELS)
"""Knobs that change no estimate, or of which none is known: left at their defaults unless named."""
LIGER, PADDING_FREE = "use_liger_kernel", "padding_free"
PRECOMPUTED = "precompute_ref_log_probs"


def planned_space(definition: SpaceDefinition, job: Job, facts: Facts) -> SearchSpace:
    """Return the candidates of a job that an estimate may prefer."""
    return _preferred_space(bind(narrowed(definition, job, facts), job, facts))


def narrowed(definition: SpaceDefinition, job: Job, facts: Facts) -> SpaceDefinition:
    """Return the definition with fewer values of the knobs that the job leaves open."""
    left_out = dict(_left_out(job, facts))
    return dataclasses.replace(
        definition, knobs=tuple(_without(knob, left_out) for knob in definition.knobs)
    )


def _left_out(job: Job, facts: Facts) -> Iterator[tuple[str, tuple[KnobValue, ...] | None]]:
    """Yield (open knob, the values that no estimate prefers; None: all but its default)."""
    names = named_knobs(job)
    for name in SAME_ESTIMATES:
        if name not in names:
            yield name, None
    if "attn_implementation" not in names:
        yield "attn_implementation", tuple(_other_kernels(facts))
    if "optim" not in names and facts.device.kind == "cuda":
        yield "optim", ("adamw_torch",)  # the same steps as fused, and copies besides
    if PADDING_FREE not in names and not facts.data.ragged:
        yield PADDING_FREE, (True,)  # rows of one length have no padding
    if LIGER not in names and not traces_liger(job, facts):
        yield LIGER, (True,)  # the same is estimated with and without


def _preferred_space(space: SearchSpace) -> SearchSpace:
    """Return the space without candidates to which estimates prefer a similar one.

    Liger's kernels take fewer bytes and less time. Log-probabilities of a reference that are
    computed beforehand take as many passes or fewer, and none beside the training, where the data
    are passed at least once.
    """

    def is_passed_once(candidate: Candidate) -> bool:
        chosen = space.settings(candidate)
        rows = candidate.global_batch * chosen.sharding.replicas
        return passes(chosen.config, rows, space.facts.data.rows) >= 1

    space = _with(LIGER, _with_one_kernel(space), lambda _: True)
    return _with(PRECOMPUTED, space, is_passed_once)


def _with(knob: str, space: SearchSpace, is_better: Callable[[Candidate], bool]) -> SearchSpace:
    """Return the space without those candidates that are better with a flag which the job leaves
    open."""
    if knob in named_knobs(space.job):
        return space
    flagged = {key_without(c, knob) for c in space.candidates if c.values.get(knob)}
    candidates = tuple(
        c
        for c in space.candidates
        if c.values.get(knob) or key_without(c, knob) not in flagged or not is_better(c)
    )
    return dataclasses.replace(space, candidates=candidates, stack_default=space.default())


def _with_one_kernel(space: SearchSpace) -> SearchSpace:
    """Return the space with one kernel of attention.

    Where the job names no kernel of attention and flash-attn is there, that takes rows of many
    lengths, and flattens them where it can. Rows of one length do without it. (So does a
    micro-batch of one row: `without_flash`. It is traced with the others, which is no trace more.)
    """
    free = {knob.name for knob in space.free_knobs}
    if ATTENTION not in free or not space.facts.model.sdpa:
        return space
    padding = (PADDING_FREE, SAMPLING)
    flat = {key_without(c, *padding) for c in space.candidates if c.values.get(PADDING_FREE)}

    def is_preferred(candidate: Candidate) -> bool:
        flash = is_flash(candidate.values.get(ATTENTION))
        if not space.facts.data.ragged:
            return not flash
        padded = not candidate.values.get(PADDING_FREE)
        return flash and not (padded and key_without(candidate, *padding) in flat)

    candidates = tuple(filter(is_preferred, space.candidates))
    if not candidates:
        return space
    return dataclasses.replace(space, candidates=candidates, stack_default=space.default())


def without_flash(candidate: Candidate, space: SearchSpace) -> Candidate | None:
    """Return a candidate of single rows without flash attention, which does nothing for these;
    None: it has no such rows, or the job chose that kernel."""
    kernel, free = candidate.values.get(ATTENTION), {knob.name for knob in space.free_knobs}
    if candidate.micro_batch > 1 or not is_flash(kernel) or ATTENTION not in free:
        return None
    changed: dict[str, KnobValue] = {ATTENTION: "sdpa"}
    if PADDING_FREE in free:
        changed[PADDING_FREE] = False
    return dataclasses.replace(candidate, values={**candidate.values, **changed})


def kept_on_device(
    candidates: Sequence[Candidate], *, activations: bool = True
) -> tuple[Candidate, ...]:
    """Return the candidates that keep all of the training on its devices; all, where none does.

    What is kept on the host is slower, and known less exactly as long as no engine is traced.

    Args:
        activations: whether activations count, beside weights and states.
    """
    kept = [one for one in candidates if not sharding_of(one.values, 2).offloads]
    if activations:
        kept = [one for one in kept if not keeps_activations_away(one.values)] or kept
    return tuple(kept or candidates)


def named_knobs(job: Job) -> set[str]:
    """Return the knobs that a job gives values for."""
    return {*job.fixed, *job.recipe, *job.training}


def key_without(candidate: Candidate, *names: str) -> str:
    """Return the same text for candidates that differ in these knobs only."""
    values = {k: v for k, v in candidate.values.items() if k not in names}
    return f"{values} {candidate.gradient_accumulation_steps}"


def _other_kernels(facts: Facts) -> Iterator[KnobValue]:
    """Yield kernels of attention that no estimate prefers."""
    if facts.model.sdpa:
        yield "eager"  # it keeps scores that sdpa never has
    runs = [flash.value for flash in FLASH if flash_facts(facts)[f"stack.{flash.value}"]]
    yield from runs[1:]  # they are estimated as the first is


def _without(knob: Knob, left_out: dict[str, tuple[KnobValue, ...] | None]) -> Knob:
    if knob.name not in left_out:
        return knob
    values = left_out[knob.name]
    if values is None:
        return dataclasses.replace(knob, values=[knob.default])
    kept = _fewer(knob.values, values)
    return knob if kept is None else dataclasses.replace(knob, values=kept)


def _fewer(searched: object, left_out: tuple[KnobValue, ...]) -> object:
    """Return values without some of them, for each kind of device; None: nothing would be left."""
    if isinstance(searched, dict):
        kept = {kind: _fewer(values, left_out) for kind, values in searched.items()}
        return None if None in kept.values() else kept
    if not isinstance(searched, list):
        return None
    return [value for value in searched if value not in left_out] or None
