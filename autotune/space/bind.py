"""The search space of one job: knobs bound to the facts, and every feasible candidate. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.job.methods import METHODS
from autotune.space.batch import TRL_ROLLOUT_BATCH
from autotune.space.batch_checks import batch_problems
from autotune.space.definition import SpaceDefinition
from autotune.space.derived_values import Bound, derived_values
from autotune.space.enumeration import Enumeration
from autotune.space.infeasible import nothing_left
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    ROLLOUT_CHUNK,
    BoundKnob,
    Candidate,
    Knob,
    condition_holds,
)
from autotune.space.notes import space_notes
from autotune.space.packages import package_facts, package_rules
from autotune.space.position_checks import Positions
from autotune.space.precision import resolve_precision
from autotune.space.settings import SettingsOfJob
from autotune.space.sharding.sharding import DISTRIBUTED_TYPE

ALL_AT_ONCE = (GENERATION_BATCH, ROLLOUT_CHUNK)
"""Knobs whose default is the most of a batch that can be (of the second, up to TRL's default)."""


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """How many candidates a rule took out, and why."""

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
        "job.precision": resolve_precision(shape.job, facts.device)[0],
        "job.spreads": shape.may_be_sharded,
        "device.kind": facts.device.kind,
        "device.maker": facts.device.maker,
        "device.count": shape.devices,
        "device.nodes": shape.job.devices.nodes,
        "model.sdpa": facts.model.sdpa,
        "model.flash_attention": facts.model.flash_attention,
        "data.rows": facts.data.rows,
        "data.longest": facts.data.longest,
        "data.sampled": facts.data.sampled,
        **package_facts(facts),
        "stack.fused_head": facts.stack.fused_head,
    }


def bind(definition: SpaceDefinition, job: Job, facts: Facts) -> SearchSpace:
    """Return the search space of a job.

    Raises:
        UserError: a pinned value cannot be, or nothing is feasible; the reasons are named.
    """
    _check_sharing(definition, job)
    shape = JobShape.of(job)
    fixed_facts = space_facts(shape, facts)
    knobs: list[BoundKnob] = []
    for knob in definition.knobs:
        # What knobs have one value only is known as well as any fact.
        context = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        if all(condition_holds(c, context.get(n), context) for n, c in knob.only_if.items()):
            knobs.append(_bind_knob(knob, shape, facts, {k.name: k.values for k in knobs}))
    _check_batch(knobs, shape)
    positions = Positions.of(job, facts)
    _check_positions(knobs, positions)
    defaults = {knob.name: knob.default for knob in knobs}
    written = (rule.with_defaults(defaults) for rule in definition.rules)
    rules = (*written, *package_rules(facts))
    enumeration = Enumeration(knobs, rules, fixed_facts, shape, facts, positions)
    candidates = tuple(enumeration.candidates())
    exclusions = tuple(
        Exclusion(reason=reason, count=count) for reason, count in enumeration.excluded.items()
    )
    if not candidates:
        decided = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        reasons = [exclusion.reason for exclusion in exclusions]
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


def _check_sharing(definition: SpaceDefinition, job: Job) -> None:
    """Several processes need knobs that say how they share a training."""
    if job.devices.total == 1 or definition.knob(DISTRIBUTED_TYPE):
        return
    raise UserError(
        Problem(
            where=definition.name,
            what=f"the job asks for {job.devices.total} devices, and this space has no knobs that "
            "share a training between them",
            hint="take `num_processes`, `distributed_type` and their rules over from "
            "search_spaces/ppo.yaml: PPO trains with DDP alone"
            if METHODS[job.method].value_model
            else "add the line `include: sharding.yaml` to it",
        )
    )


def _check_batch(knobs: list[BoundKnob], shape: JobShape) -> None:
    """A batch that cannot be exact is refused here."""
    values = {knob.name: knob.values for knob in knobs}
    lengths = values.get("max_length", (shape.job.max_length,))
    problems = batch_problems(shape, lengths, values.get(GROUP, (1,)))
    if problems:
        raise UserError(*problems)


def _check_positions(knobs: list[BoundKnob], positions: Positions) -> None:
    """Sequences that the model has no positions for are refused here."""
    lengths = {knob.name: knob.values for knob in knobs}.get(positions.knob, (positions.default,))
    problem = positions.refusal([{positions.knob: length} for length in lengths])
    if problem is not None:
        raise UserError(problem)
