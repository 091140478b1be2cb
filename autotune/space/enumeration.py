"""Every feasible candidate of a job's knobs, and what each rule took out. Pure.

Candidates are enumerated knob by knob; a rule cuts a branch as soon as all that it asks for is
known. What facts and knobs of one value say of a rule is looked up once, for all candidates.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from autotune.errors import Problem
from autotune.facts import Facts
from autotune.job.job import KnobValue
from autotune.space.batch import accumulation
from autotune.space.batch_checks import completions_problem, shared_rows_problem
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    ACCUMULATION,
    GLOBAL_BATCH,
    MICRO_BATCH,
    BoundKnob,
    Candidate,
    Rule,
    condition_holds,
)
from autotune.space.position_checks import Positions
from autotune.space.vllm.colocated import share_problem
from autotune.space.vllm.server import division_problem


class Enumeration:
    """Depth-first over the knobs of several values.

    Args:
        knobs: of the job, in the order of its candidates' values.
        rules: those that may forbid a candidate.
        fixed_facts: the facts that rules may ask for, by name.

    Attributes:
        excluded: how many candidates each reason took out.
        beyond_rules: reasons that took out candidates which no rule forbids.
    """

    def __init__(
        self,
        knobs: Sequence[BoundKnob],
        rules: Sequence[Rule],
        fixed_facts: Mapping[str, Any],
        shape: JobShape,
        facts: Facts,
        positions: Positions,
    ):
        self._names = [knob.name for knob in knobs]
        self._knobs = [knob for knob in knobs if len(knob.values) != 1]
        self._shape, self._facts, self._positions = shape, facts, positions
        self.excluded: dict[str, int] = {}
        self.beyond_rules: dict[str, None] = {}
        single_values = {knob.name: knob.values[0] for knob in knobs if len(knob.values) == 1}
        self._known: dict[str, Any] = {**fixed_facts, **single_values}
        self._rules: list[list[Rule]] = [[] for _ in range(len(self._knobs) + 1)]
        for rule in rules:
            open_rule = self._with_what_is_open(rule)
            if open_rule is not None:
                self._rules[self._depth(open_rule)].append(open_rule)

    def candidates(self) -> Iterator[Candidate]:
        """Yield every feasible candidate."""
        yield from self._descend(0, dict(self._known))

    def _with_what_is_open(self, rule: Rule) -> Rule | None:
        """Return the rule with the conditions that some knob decides; None: it forbids nothing."""
        conditions = {}
        for name, condition in rule.forbid.items():
            if any(knob.name in _names_of(name, condition) for knob in self._knobs):
                conditions[name] = condition
            elif name not in self._known or not condition_holds(
                condition, self._known[name], self._known
            ):
                return None
        return Rule(forbid=conditions, reason=rule.reason)

    def _depth(self, rule: Rule) -> int:
        """Return the number of knobs after which all that a rule asks for is known."""
        names = {n for pair in rule.forbid.items() for n in _names_of(*pair)}
        depths = (depth for depth, knob in enumerate(self._knobs, 1) if knob.name in names)
        return max(depths, default=0)

    def _descend(self, depth: int, context: dict[str, Any]) -> Iterator[Candidate]:
        """Yield the candidates of a branch.

        Args:
            context: facts, and the values of the first `depth` knobs; changed on the way.
        """
        for rule in self._rules[depth]:
            if rule.excludes(context):
                self._exclude(rule.reason, depth)
                return
        if depth == len(self._knobs):
            yield from self._complete({name: context[name] for name in self._names})
            return
        knob = self._knobs[depth]
        for value in knob.values:
            context[knob.name] = value
            yield from self._descend(depth + 1, context)

    def _complete(self, values: dict[str, KnobValue]) -> Iterator[Candidate]:
        shape, job = self._shape, self._shape.job
        length, micro = values.get("max_length", job.max_length), values[MICRO_BATCH]
        assert length is None or isinstance(length, int)
        assert isinstance(micro, int)
        batch = values.get(GLOBAL_BATCH, job.global_batch_size)
        sequences = job.with_batch(batch).batch_sequences(length)
        count = accumulation(sequences, shape.replicas(values), micro) if sequences else None
        pinned = job.fixed.get(ACCUMULATION)
        reason = shared_rows_problem(shape, self._facts, values)
        if reason is None and count is None:
            reason = "the micro-batch does not divide the global batch exactly"
        if reason is None and pinned not in (None, count):
            reason = f"{ACCUMULATION} is pinned to {pinned}"
        reason = (
            reason
            or self._positions.problem(values)
            or completions_problem(shape, self._facts.data.rows, values, sequences or 0)
            or division_problem(shape, self._facts, values)
            or share_problem(shape, self._facts, values)
        )
        if reason is not None:
            self.beyond_rules[reason] = None
            self._exclude(reason, len(self._knobs))
        elif count is not None:
            yield Candidate(values=values, gradient_accumulation_steps=count)

    def _exclude(self, reason: str, depth: int) -> None:
        count = prod(len(knob.values) for knob in self._knobs[depth:])
        self.excluded[reason] = self.excluded.get(reason, 0) + count


def _names_of(name: str, condition: Any) -> set[str]:
    """Return the knobs and facts that a condition of a rule asks for."""
    above = condition.get("above") if isinstance(condition, Mapping) else None
    return {name, above} if isinstance(above, str) else {name}


def nothing_left(
    rules: Sequence[Rule],
    context: Mapping[str, Any],
    knob_names: Collection[str],
    reasons: Sequence[str],
) -> Problem:
    """Return the problem of a space without candidates.

    A rule that the context meets takes all of them out by itself: such rules alone are named,
    not what else was taken out on the way. Where there is none, it was all reasons together.

    Args:
        context: facts, and knobs of one value.
        knob_names: names of the knobs that the job pins or lists.
        reasons: of everything that was taken out; where some of it met all rules, of that.
    """
    decisive = [rule for rule in rules if rule.excludes(context)]
    unique_reasons = dict.fromkeys(rule.reason for rule in decisive) if decisive else reasons
    text = "; ".join(reason.removesuffix(".") for reason in unique_reasons)
    pins = dict.fromkeys(name for rule in decisive for name in rule.forbid if name in knob_names)
    pin_list = " or ".join(f"`{name}`" for name in pins) or "a pinned knob"
    return Problem(
        where="job",
        what=f"no configuration is possible: {text}",
        hint=f"remove {pin_list} from the job",
    )
