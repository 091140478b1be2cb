"""Makes the draft of a plan while its traces run: shows it as it improves, and may be stopped."""

import dataclasses
from collections.abc import Mapping

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.job.methods import METHODS
from autotune.plan.choices import CHECKPOINTING
from autotune.plan.draft import Draft, draft_of
from autotune.plan.estimator import Estimator
from autotune.plan.known import Known
from autotune.space.bind import SearchSpace
from autotune.space.memory_order import expected_leanness


def drafted(space: SearchSpace, estimator: Estimator) -> Draft:
    """What all traces come to; where the user stops them, what is known by then.

    Raises:
        KeyboardInterrupt: the user stopped them, and nothing is known yet.
    """
    drafting, stopped = Drafting(space, estimator), False
    try:
        drafting.trace()
    except KeyboardInterrupt:
        if not drafting.has_traced:
            raise
        stopped = True
    return dataclasses.replace(drafting.draft(), stopped=stopped)


class Drafting:
    """Estimates the candidates of a space; each task is estimated once for each reply to it."""

    def __init__(self, space: SearchSpace, estimator: Estimator) -> None:
        self._space, self._estimator = space, estimator
        self._tasks = estimator.tasks(space.candidates)
        self._bounds = estimator.ruled_out(space.candidates)
        self._first_look: Mapping[str, Estimate] = {}
        self._known = Known(self._show)
        self._of_tasks: dict[int, tuple[EstimateReply, Mapping[str, Estimate]]] = {}
        self._shown: str | None = None

    @property
    def has_traced(self) -> bool:
        """Whether anything is known that a trace told."""
        return bool(self._first_look or self._known.replies)

    def trace(self) -> None:
        """Make all traces."""
        if METHODS[self._estimator.job.method].online and len(self._tasks) > 1:
            self._look_first()
        self._estimator.replies(self._tasks, self._known)

    def draft(self) -> Draft:
        """What is known by now."""
        estimates, by_formula = {**self._bounds, **self._first_look}, 0
        for number, reply in self._known.replies.items():
            estimates |= self._estimates(number, reply)
            by_formula += len(self._tasks[number].members) if reply.by_formula else 0
        devices = self._estimator.job.devices.total
        return draft_of(self._space, estimates, devices, by_formula=by_formula)

    def _look_first(self) -> None:
        """Estimate the leanest candidates with and without checkpointing before all others: where
        the method generates, a variant takes long. Their traces are found again."""
        ordered = sorted(self._space.candidates, key=expected_leanness)
        firsts = {one.values.get(CHECKPOINTING): one for one in reversed(ordered)}
        self._first_look = self._estimator.estimates(list(firsts.values()))
        self._show()

    def _estimates(self, number: int, reply: EstimateReply) -> Mapping[str, Estimate]:
        """Of the candidates of a task."""
        latest = self._of_tasks.get(number)
        if latest is None or latest[0] is not reply:
            estimates = self._estimator.combined([self._tasks[number]], [reply])
            latest = self._of_tasks[number] = reply, estimates
        return latest[1]

    def _show(self) -> None:
        """Show the best choice, if it fits and is another than before."""
        best = self.draft().choices[0]
        if best.estimate.fits and best.candidate.key != self._shown:
            self._shown = best.candidate.key
            devices = self._estimator.job.devices.total
            self._estimator.progress.improved(best, self._space, devices)
