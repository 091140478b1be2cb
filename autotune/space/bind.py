"""The search space of one job: knobs bound to the facts, and every feasible candidate. Pure.

Candidates are enumerated knob by knob; a rule cuts a branch as soon as all it asks for is known,
and what it cut is counted, so that `autotune space show` can say why each candidate is missing.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.job.methods import METHODS
from autotune.space.batch import TRL_ROLLOUT_BATCH, accumulation
from autotune.space.batch_checks import batch_problems
from autotune.space.completion_checks import completions_problem
from autotune.space.definition import SpaceDefinition
from autotune.space.derived_values import Bound, derived_values
from autotune.space.infeasible import nothing_left
from autotune.space.knobs import (
    ACCUMULATION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    ROLLOUT_CHUNK,
    Candidate,
    Knob,
    Rule,
    condition_holds,
)
from autotune.space.notes import space_notes
from autotune.space.packages import package_facts, package_rules
from autotune.space.position_checks import Positions
from autotune.space.precision import resolve_precision
from autotune.space.sharding.hpz import group_problem
from autotune.space.sharding.processes import may_be_sharded, processes_of
from autotune.space.sharding.sharding import DISTRIBUTED_TYPE
from autotune.space.vllm.colocated import share_problem
from autotune.space.vllm.server import division_problem

ALL_AT_ONCE = (GENERATION_BATCH, ROLLOUT_CHUNK)
"""Knobs whose default is the most of a batch that can be (of the second, up to TRL's default)."""


@dataclass(frozen=True, kw_only=True)
class BoundKnob:
    """A knob with the values it may take in this job, and where they come from."""

    name: str
    kind: str
    place: str
    values: tuple[KnobValue, ...]
    default: KnobValue
    why: str


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """How many candidates a rule took out, and why."""

    reason: str
    count: int


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Every feasible candidate of a job, in a stable order."""

    knobs: tuple[BoundKnob, ...]
    candidates: tuple[Candidate, ...]
    exclusions: tuple[Exclusion, ...]
    notes: tuple[str, ...] = ()
    """What the user should know of every candidate."""
    stack_default: Candidate | None = None
    """The candidate closest to the stack's defaults, where the candidates may lack it."""

    @property
    def free_knobs(self) -> tuple[BoundKnob, ...]:
        """The knobs with more than one value."""
        return tuple(knob for knob in self.knobs if len(knob.values) > 1)

    def default(self) -> Candidate:
        """The candidate closest to what the stack does when nobody chooses."""
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
        """The candidate that differs from these values in the fewest knobs."""
        return min(self.candidates, key=lambda candidate: candidate.distance(values))


def space_facts(job: Job, facts: Facts) -> dict[str, Any]:
    """The facts that rules may ask for, by name."""
    return {
        "job.tuning": job.tuning,
        "job.precision": resolve_precision(job, facts.device)[0],
        "job.spreads": may_be_sharded(job),
        "device.kind": facts.device.kind,
        "device.maker": facts.device.maker,
        "device.count": job.devices.total,
        "device.nodes": job.devices.nodes,
        "model.sdpa": facts.model.sdpa,
        "model.flash_attention": facts.model.flash_attention,
        "data.rows": facts.data.rows,
        "data.longest": facts.data.longest,
        "data.sampled": facts.data.sampled,
        **package_facts(facts),
        "stack.fused_head": facts.stack.fused_head,
    }


def bind(definition: SpaceDefinition, job: Job, facts: Facts) -> SearchSpace:
    """The search space of a job.

    Raises:
        UserError: a pinned value cannot be, or nothing is feasible; the reasons are named.
    """
    _check_sharing(definition, job)
    fixed_facts = space_facts(job, facts)
    knobs: list[BoundKnob] = []
    for knob in definition.knobs:
        # What knobs have one value only is known as well as any fact.
        context = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        if all(condition_holds(c, context.get(n), context) for n, c in knob.only_if.items()):
            knobs.append(_bind_knob(knob, job, facts, {k.name: k.values for k in knobs}))
    _check_batch(knobs, job)
    positions = Positions.of(job, facts)
    _check_positions(knobs, positions)
    defaults = {knob.name: knob.default for knob in knobs}
    written = (rule.with_defaults(defaults) for rule in definition.rules)
    rules = (*written, *package_rules(facts))
    enumeration = _Enumeration(knobs, rules, fixed_facts, job, facts)
    candidates = tuple(enumeration.candidates())
    exclusions = tuple(
        Exclusion(reason=reason, count=count) for reason, count in enumeration.excluded.items()
    )
    if not candidates:
        decided = {**fixed_facts, **{k.name: k.values[0] for k in knobs if len(k.values) == 1}}
        reasons = [exclusion.reason for exclusion in exclusions]
        raise UserError(nothing_left(rules, decided, {*job.fixed, *job.recipe}, reasons))
    return SearchSpace(
        knobs=tuple(_feasible_values(knob, candidates) for knob in knobs),
        candidates=candidates,
        exclusions=exclusions,
        notes=space_notes(job, facts, positions, [candidate.values for candidate in candidates]),
    )


def _feasible_values(knob: BoundKnob, candidates: tuple[Candidate, ...]) -> BoundKnob:
    """The knob with the values that some candidate has."""
    values = [v for v in knob.values if any(c[knob.name] == v for c in candidates)]
    default = knob.default if knob.default in values or knob.name == MICRO_BATCH else values[0]
    return dataclasses.replace(knob, values=tuple(values), default=default)


def _bind_knob(knob: Knob, job: Job, facts: Facts, bound_values: Bound) -> BoundKnob:
    by_device = isinstance(knob.values, dict)
    word: Any = knob.values[facts.device.kind] if by_device else knob.values
    values = derived_values(knob.name, word, job, facts, bound_values)
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


def _check_batch(knobs: list[BoundKnob], job: Job) -> None:
    """A batch that cannot be exact is refused here."""
    values = {knob.name: knob.values for knob in knobs}
    problems = batch_problems(
        job, values.get("max_length", (job.max_length,)), values.get(GROUP, (1,))
    )
    if problems:
        raise UserError(*problems)


def _check_positions(knobs: list[BoundKnob], positions: Positions) -> None:
    """Sequences that the model has no positions for are refused here."""
    lengths = {knob.name: knob.values for knob in knobs}.get(positions.knob, (positions.default,))
    problem = positions.refusal([{positions.knob: length} for length in lengths])
    if problem is not None:
        raise UserError(problem)


class _Enumeration:
    """Depth-first over the knobs; `excluded` counts what each reason took out."""

    def __init__(
        self,
        knobs: list[BoundKnob],
        rules: tuple[Rule, ...],
        fixed_facts: dict[str, Any],
        job: Job,
        facts: Facts,
    ):
        self._knobs, self._fixed_facts, self._job, self._facts = knobs, fixed_facts, job, facts
        self._positions = Positions.of(job, facts)
        self.excluded: dict[str, int] = {}
        position = {knob.name: depth for depth, knob in enumerate(knobs)}
        self._rules: list[list[Rule]] = [[] for _ in range(len(knobs) + 1)]
        for rule in rules:
            rule_names = set(rule.forbid) | {
                condition["above"]
                for condition in rule.forbid.values()
                if isinstance(condition, Mapping) and isinstance(condition.get("above"), str)
            }
            self._rules[max((position.get(n, -1) + 1 for n in rule_names), default=0)].append(rule)

    def candidates(self) -> Iterator[Candidate]:
        """Every feasible candidate."""
        yield from self._descend(0, {})

    def _descend(self, depth: int, values: dict[str, KnobValue]) -> Iterator[Candidate]:
        context = {**self._fixed_facts, **values}
        for rule in self._rules[depth]:
            if rule.excludes(context):
                self._exclude(rule.reason, depth)
                return
        if depth == len(self._knobs):
            yield from self._complete(values)
            return
        knob = self._knobs[depth]
        for value in knob.values:
            yield from self._descend(depth + 1, {**values, knob.name: value})

    def _complete(self, values: dict[str, KnobValue]) -> Iterator[Candidate]:
        length, micro = values.get("max_length", self._job.max_length), values[MICRO_BATCH]
        assert length is None or isinstance(length, int)
        assert isinstance(micro, int)
        batch = values.get(GLOBAL_BATCH, self._job.global_batch_size)
        sequences = self._job.with_batch(batch).batch_sequences(length)
        count = (
            accumulation(sequences, processes_of(values, self._job), micro) if sequences else None
        )
        pinned = self._job.fixed.get(ACCUMULATION)
        if count is None:
            uneven = "the micro-batch does not divide the global batch exactly"
            self._exclude(uneven, len(self._knobs))
        elif pinned is not None and pinned != count:
            self._exclude(f"{ACCUMULATION} is pinned to {pinned}", len(self._knobs))
        elif (
            reason := self._positions.problem(values)
            or completions_problem(self._job, self._fixed_facts, values, sequences or 0)
            or division_problem(self._job, self._facts, values)
            or share_problem(self._job, self._facts, values)
            or group_problem(self._job, values)
        ) is not None:
            self._exclude(reason, len(self._knobs))
        else:
            yield Candidate(values=values, gradient_accumulation_steps=count)

    def _exclude(self, reason: str, depth: int) -> None:
        count = prod(len(knob.values) for knob in self._knobs[depth:])
        self.excluded[reason] = self.excluded.get(reason, 0) + count
