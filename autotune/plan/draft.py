"""What the replies so far come to: the candidates they are of, folded into choices. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.job.methods import METHODS
from autotune.plan.choices import CHECKPOINTING, Choice, choices
from autotune.plan.estimator import Estimator
from autotune.plan.known import Known
from autotune.plan.variants import VariantTask
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan as far as it is known.

    Attributes:
        space: with the candidates that have an estimate.
        choices: these as a person tells them apart, the best first.
        left_out: how many candidates have none yet.
        stopped: whether the user stopped the traces before they were done.
        by_formula: how many are spread by an engine that was not traced for them.
    """

    space: SearchSpace
    estimates: Mapping[str, Estimate]
    choices: tuple[Choice, ...]
    left_out: int
    by_formula: int
    stopped: bool = False


def drafted(space: SearchSpace, estimator: Estimator) -> Draft:
    """What all traces come to; where the user stops them, what is known by then.

    Raises:
        KeyboardInterrupt: the user stopped them, and nothing is known yet.
    """
    tasks = estimator.tasks(space.candidates)
    drafting, shown = Drafting(space, estimator, tasks), Shown(space, estimator)
    if METHODS[estimator.job.method].online and len(tasks) > 1:
        shown.look_first()

    def improved() -> None:
        shown.show(drafting.draft(known.replies).choices)

    known = Known(improved)
    stopped = False
    try:
        estimator.replies(tasks, known)
    except KeyboardInterrupt:
        if not known.replies:
            raise
        stopped = True
    draft = drafting.draft(known.replies)
    return dataclasses.replace(draft, stopped=True) if stopped else draft


class Shown:
    """Shows the best of what is estimated so far."""

    def __init__(self, space: SearchSpace, estimator: Estimator) -> None:
        self._space, self._estimator = space, estimator
        self._best: str | None = None

    def show(self, folded: Sequence[Choice]) -> None:
        """Show the first of some choices, if it fits and is another than before."""
        best = folded[0]
        if best.estimate.fits and best.candidate.key != self._best:
            self._best = best.candidate.key
            devices = self._estimator.job.devices.total
            self._estimator.progress.improved(best, self._space, devices)

    def look_first(self) -> None:
        """Estimate the leanest candidates with and without checkpointing before all others: where
        the method generates, a variant takes long. Their traces are found again."""
        ordered = sorted(self._space.candidates, key=expected_leanness)
        firsts = {one.values.get(CHECKPOINTING): one for one in reversed(ordered)}
        estimates = self._estimator.estimates(list(firsts.values()))
        pairs = [(one, estimates[one.key]) for one in firsts.values()]
        self.show(choices(self._space, pairs, self._estimator.job.devices.total))


class Drafting:
    """Makes drafts of a space while replies to its tasks come."""

    def __init__(
        self, space: SearchSpace, estimator: Estimator, tasks: Sequence[VariantTask]
    ) -> None:
        self._space, self._estimator, self._tasks = space, estimator, tasks
        self._estimates: dict[int, tuple[EstimateReply, dict[str, Estimate]]] = {}
        self._ruled_out = estimator.ruled_out(space.candidates)

    def draft(self, replies: Mapping[int, EstimateReply]) -> Draft:
        """The draft of the replies to some tasks, by the index of the task."""
        estimates = dict(self._ruled_out)
        for number in sorted(replies):
            estimates |= self._of_task(number, replies[number])
        return Draft(
            **_folded(self._space, estimates, self._estimator),
            left_out=len(self._space.candidates) - len(estimates),
            by_formula=sum(len(self._tasks[n].members) for n in replies if replies[n].by_formula),
        )

    def _of_task(self, number: int, reply: EstimateReply) -> dict[str, Estimate]:
        known = self._estimates.get(number)
        if known is None or known[0] is not reply:
            estimates = self._estimator.combined([self._tasks[number]], [reply])
            known = self._estimates[number] = reply, estimates
        return known[1]


def with_candidate(
    draft: Draft, estimator: Estimator, candidate: Candidate, estimate: Estimate
) -> Draft:
    """The draft with a further candidate of its space."""
    space = dataclasses.replace(draft.space, candidates=(*draft.space.candidates, candidate))
    estimates = {**draft.estimates, candidate.key: estimate}
    return dataclasses.replace(draft, **_folded(space, estimates, estimator))


def _folded(
    space: SearchSpace, estimates: Mapping[str, Estimate], estimator: Estimator
) -> dict[str, Any]:
    """The fields of a draft that follow from the estimates."""
    candidates = tuple(c for c in space.candidates if c.key in estimates)
    known_space = dataclasses.replace(space, candidates=candidates)
    pairs = [(candidate, estimates[candidate.key]) for candidate in candidates]
    folded = choices(known_space, pairs, estimator.job.devices.total)
    return {"space": known_space, "estimates": estimates, "choices": tuple(folded)}
