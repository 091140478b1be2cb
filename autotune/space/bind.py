"""The search space of one job: knobs bound to the facts, and every feasible candidate. Pure."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts
from autotune.job.job import Job, KnobValue
from autotune.space.attention import attention_rules
from autotune.space.batch import TRL_ROLLOUT_BATCH, generation_batches, micro_batches, quarters
from autotune.space.batch_checks import batch_problems
from autotune.space.definition import (
    AS_NEEDED,
    BY_LENGTH,
    DEFAULT_SIZE,
    DIVISORS,
    GROWING,
    JOB_BATCH,
    JOB_MAX_LENGTH,
    ONE_EACH,
    ONE_SHAPE,
    QUARTERS,
    SIZES,
    UNTRAINED,
    WHOLE_GROUPS,
    SpaceDefinition,
)
from autotune.space.enumeration import Enumeration, nothing_left
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    ROLLOUT_CHUNK,
    TENSOR_PARALLEL,
    BoundKnob,
    Candidate,
    Knob,
    condition_holds,
)
from autotune.space.notes import space_notes
from autotune.space.packages import package_facts, package_rules
from autotune.space.position_checks import Positions
from autotune.space.quantization import divides_base
from autotune.space.sharding.deepspeed import default_size
from autotune.space.sharding.sharding import CP_SIZE, SP_SIZE
from autotune.space.trl_config import SettingsOfJob, resolve_dtype, resolve_precision
from autotune.space.vllm.colocated import MODE, SERVER, TRL_SHARE, needed_share
from autotune.space.vllm.server import searched_sizes, server_share

ALL_AT_ONCE = (GENERATION_BATCH, ROLLOUT_CHUNK)
"""Knobs whose default is the largest possible part of a batch (of the second, up to TRL's
default)."""


Bound = Mapping[str, tuple[KnobValue, ...]]
"""The values of the knobs that stand above, by name."""


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A rule, by its reason, and the number of candidates that it took out."""

    reason: str
    count: int


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Every feasible candidate of a job, in a stable order."""

    shape: JobShape
    facts: Facts
    knobs: tuple[BoundKnob, ...]
    candidates: tuple[Candidate, ...]
    exclusions: tuple[Exclusion, ...]
    settings: SettingsOfJob = field(compare=False, repr=False)
    """What the stack is told to train a candidate of the job."""
    notes: tuple[str, ...] = ()
    """What the user should know of every candidate."""
    stack_default: Candidate | None = None
    """The candidate closest to the stack's defaults, where the candidates may lack it."""

    @property
    def job(self) -> Job:
        """The job whose space this is."""
        return self.shape.job

    @property
    def free_knobs(self) -> tuple[BoundKnob, ...]:
        """The knobs with more than one value."""
        return tuple(knob for knob in self.knobs if len(knob.values) > 1)

    def default(self) -> Candidate:
        """Return the candidate closest to what the stack does when nobody chooses."""
        values = {knob.name: knob.default for knob in self.knobs}
        compared = {name: value for name, value in values.items() if name not in ALL_AT_ONCE}

        def distance(candidate: Candidate) -> tuple[int, int, int]:
            target = values.get(MICRO_BATCH)
            gap = abs(candidate.micro_batch - target) if isinstance(target, int) else 0
            all_at_once = next((v for n in ALL_AT_ONCE if (v := candidate.values.get(n))), None)
            if ROLLOUT_CHUNK in candidate.values and isinstance(all_at_once, int):
                all_at_once = all_at_once if all_at_once <= TRL_ROLLOUT_BATCH else -all_at_once
            # Of several batches each has its own: what it generates at once by default is the most.
            return (
                candidate.distance(compared),
                gap,
                -all_at_once if isinstance(all_at_once, int) else 0,
            )

        return self.stack_default or min(self.candidates, key=distance)

    def nearest(self, values: Mapping[str, KnobValue]) -> Candidate:
        """Return the candidate that differs from these values in the fewest knobs."""
        return min(self.candidates, key=lambda candidate: candidate.distance(values))


def space_facts(shape: JobShape, facts: Facts) -> dict[str, Any]:
    """Return the facts that rules may ask for, by name."""
    return {
        "job.tuning": shape.job.tuning,
        "job.method": shape.job.method,
        "job.shares_rows": any(shape.pinned_or_listed(name) for name in (CP_SIZE, SP_SIZE)),
        "job.precision": resolve_precision(shape.job, facts.device)[0],
        "job.spreads": shape.may_be_sharded,
        "job.divides_base": divides_base(shape.job),
        "device.kind": facts.device.kind,
        "device.maker": facts.device.maker,
        "device.count": shape.devices,
        "device.nodes": shape.job.devices.nodes,
        "model.sdpa": facts.model.sdpa,
        "model.flash_attention": facts.model.flash_attention,
        "model.experts": bool(facts.model.expert_parameters),
        "model.expert_kernels": facts.model.expert_kernels,
        "data.rows": facts.data.rows,
        "data.longest": facts.data.longest,
        "data.sampled": facts.data.sampled,
        **package_facts(facts),
        "stack.fused_head": facts.stack.fused_head,
        "stack.model_kwargs": facts.stack.model_kwargs,
        "stack.checkpoints_every_n": facts.stack.checkpoints_every_n,
        "stack.checkpoints_selectively": facts.stack.checkpoints_selectively,
    }


def bind(definition: SpaceDefinition, job: Job, facts: Facts) -> SearchSpace:
    """Return the search space of a job.

    Raises:
        UserError: a pinned value cannot be, or nothing is feasible; the reasons are named.
    """
    _check_device(job, facts.device)
    shape = JobShape.of(job)
    fixed_facts = space_facts(shape, facts)
    knobs: list[BoundKnob] = []
    for knob in definition.knobs:
        # What knobs have one value only is known as well as any fact.
        context = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        if all(condition_holds(c, context.get(n), context) for n, c in knob.only_if.items()):
            knobs.append(_bind_knob(knob, shape, facts, {k.name: k.values for k in knobs}))
    _check_recipe(definition, knobs, job, fixed_facts)
    _check_batch(knobs, shape)
    positions = Positions.of(job, facts)
    _check_positions(knobs, positions)
    defaults = {knob.name: knob.default for knob in knobs}
    written = (rule.with_defaults(defaults) for rule in definition.rules)
    rules = (*written, *attention_rules(job, facts), *package_rules(facts))
    enumeration = Enumeration(knobs, rules, fixed_facts, shape, facts, positions)
    candidates = tuple(enumeration.candidates())
    exclusions = tuple(
        Exclusion(reason=reason, count=count) for reason, count in enumeration.excluded.items()
    )
    if not candidates:
        decided = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        reasons = [*(enumeration.beyond_rules or enumeration.excluded)]
        raise UserError(nothing_left(rules, decided, {*job.fixed, *job.recipe}, reasons))
    return SearchSpace(
        shape=shape,
        facts=facts,
        knobs=tuple(_feasible_values(knob, candidates) for knob in knobs),
        candidates=candidates,
        exclusions=exclusions,
        settings=SettingsOfJob(job, facts),
        notes=space_notes(shape, facts, positions, [candidate.values for candidate in candidates]),
    )


def _feasible_values(knob: BoundKnob, candidates: tuple[Candidate, ...]) -> BoundKnob:
    """Return the knob with the values that some candidate has."""
    values = [v for v in knob.values if any(c[knob.name] == v for c in candidates)]
    default = knob.default if knob.default in values or knob.name == MICRO_BATCH else values[0]
    return dataclasses.replace(knob, values=tuple(values), default=default)


def _bind_knob(knob: Knob, shape: JobShape, facts: Facts, bound_values: Bound) -> BoundKnob:
    job, by_device = shape.job, isinstance(knob.values, dict)
    word: Any = knob.values[facts.device.kind] if by_device else knob.values
    values = derived_values(knob.name, word, shape, facts, bound_values)
    default = values[0] if knob.default is None and values else knob.default
    if knob.name in job.fixed:
        values = [job.fixed[knob.name]]
    elif knob.name in job.recipe:
        values = job.recipe[knob.name]
    elif knob.kind == "recipe":
        values = [default] if default in values else values[:1]
    return BoundKnob(
        name=knob.name,
        kind=knob.kind,
        place=knob.place,
        values=tuple(values),
        default=default if default in values or knob.name == MICRO_BATCH else values[0],
        why=knob.why,
    )


def _check_device(job: Job, device: DeviceFacts) -> None:
    """Refuse fields that transformers refuses on the device that will train."""
    capability, cuda = device.capability, device.kind == "cuda"
    if cuda and (device.maker != "NVIDIA" or capability is None or capability >= (8, 0)):
        return
    problems = [
        Problem(
            where=f"training: {name}",
            what=f"{device.name} does not compute in {kind}; GPUs of compute capability 8.0 do",
            hint="take it out, or choose another device",
        )
        for name, kind in (("tf32", "TF32"), ("bf16_full_eval", "bf16"))
        if job.training.get(name) is True and (cuda or name == "tf32")
    ]
    if problems:
        raise UserError(*problems)


def _check_recipe(
    definition: SpaceDefinition, knobs: list[BoundKnob], job: Job, facts: Mapping[str, Any]
) -> None:
    """Refuse a choice of what is learned that the model or the stack has no place for."""
    bound = {knob.name for knob in knobs}
    problems = [
        Problem(
            where=f"{section}: {knob.name}",
            what=f"it needs `{name}: {str(needed).lower()}`, and that is not so here",
            hint="leave it out, or choose another model",
        )
        for section, pins in (("fixed", job.fixed), ("recipe", job.recipe))
        for knob in definition.knobs
        if knob.name in pins and knob.kind == "recipe" and knob.name not in bound
        for name, needed in knob.only_if.items()
        if name in facts and not condition_holds(needed, facts[name], facts)
    ]
    if problems:
        raise UserError(*problems)


def _check_batch(knobs: list[BoundKnob], shape: JobShape) -> None:
    """Refuse a batch that cannot be exact."""
    values = {knob.name: knob.values for knob in knobs}
    lengths = values.get("max_length", (shape.job.max_length,))
    problems = batch_problems(shape, lengths, values.get(GROUP, (1,)))
    if problems:
        raise UserError(*problems)


def _check_positions(knobs: list[BoundKnob], positions: Positions) -> None:
    """Refuse sequences that the model has no positions for."""
    lengths = {knob.name: knob.values for knob in knobs}.get(positions.knob, (positions.default,))
    problem = positions.refusal([{positions.knob: length} for length in lengths])
    if problem is not None:
        raise UserError(problem)


def derived_values(name: str, word: Any, shape: JobShape, facts: Facts, bound_values: Bound) -> Any:
    """Return the values of the knob `name` that a word of a search space stands for; anything else
    stands for itself."""
    if word == DIVISORS:
        pairs = itertools.product(shape.global_batches, shape.replica_counts)
        return sorted({micro for pair in pairs for micro in micro_batches(*pair)})
    if word == WHOLE_GROUPS:
        generation_batch_sizes = {n for s in shape.global_batches for n in generation_batches(s, 1)}
        return sorted(generation_batch_sizes, reverse=True)
    if word == QUARTERS:
        pairs = itertools.product(shape.global_batches, shape.process_counts)
        parts = {batch // count for batch, count in pairs}
        return sorted({n for part in parts if part for n in quarters(part)}, reverse=True)
    if word == JOB_MAX_LENGTH:
        return [shape.job.max_length]
    if word == JOB_BATCH:
        return [shape.job.global_batch_size]
    if word == ONE_EACH:
        return list(shape.process_counts)
    if word == BY_LENGTH:
        return ["random", "group_by_length"] if facts.data.ragged else ["random"]
    if word == GROWING:
        return _segments(facts)
    if word == ONE_SHAPE:
        return [False, True] if _of_one_length(shape.job, facts.data) else [False]
    if word == UNTRAINED:
        return [resolve_dtype(shape.job, facts)[0]]
    if word == SIZES:
        return searched_sizes(shape, facts)
    if word == AS_NEEDED and SERVER in bound_values.get(MODE, ()):
        return [server_share(shape.job, facts)]
    if word == AS_NEEDED:
        return _shares(shape, facts, bound_values)
    if word == DEFAULT_SIZE:
        return [default_size(name, facts.model.hidden_size)]
    return word


def _of_one_length(job: Job, data: DataFacts) -> bool:
    """True if rows are as long as one another once they are cut, padded or packed."""
    if job.fixed.get("packing"):
        return job.training.get("packing_strategy") == "wrapped"
    most, multiple = job.max_length or data.longest, job.training.get("pad_to_multiple_of")
    multiple = multiple if isinstance(multiple, int) and multiple > 0 else 1
    ends = (data.quantiles.get("p1", 0), data.longest)
    return len({-(-min(end, most) // multiple) for end in ends}) == 1 and not data.sampled


def _segments(facts: Facts) -> list[bool]:
    """Return the values of `expandable_segments`: true only where torch has it. Rows of
    several lengths need it, because fixed segments keep more with each larger micro-batch."""
    if facts.device.kind != "cuda" or facts.device.maker != "NVIDIA":
        return [False]
    return [True] if facts.data.ragged else [False, True]


def _shares(shape: JobShape, facts: Facts, bound_values: Bound) -> list[float]:
    shares = {
        needed_share(shape.job, facts, max(generation_batch // processes, 1), length, size)
        for processes in shape.process_counts
        for generation_batch in bound_values[GENERATION_BATCH]
        for length in bound_values[COMPLETION]
        for size in bound_values.get(TENSOR_PARALLEL, (1,))
        if isinstance(generation_batch, int) and isinstance(length, int) and isinstance(size, int)
    }
    return sorted({TRL_SHARE if share is None else share for share in shares})
