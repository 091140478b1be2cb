"""Makes the draft of a plan while its traces run: shows it as it improves, and may be stopped."""

import dataclasses
from collections.abc import Mapping, Sequence

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.job.methods import METHODS
from autotune.plan.choices import CHECKPOINTING
from autotune.plan.draft import Draft, draft_of
from autotune.plan.estimator import Estimator
from autotune.plan.known import Known
from autotune.plan.narrowing import named_knobs
from autotune.plan.variants import VariantTask
from autotune.plan.waves import next_wave
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness


def drafted(space: SearchSpace, estimator: Estimator, *, whole: bool = False) -> Draft:
    """Return what all traces come to; where the user stops them, what is known by then.

    Args:
        whole: whether every candidate is estimated, even if it cannot be the answer (`waves.py`).

    Raises:
        KeyboardInterrupt: the user stopped them, and nothing is known yet.
    """
    drafting, stopped = Drafting(space, estimator, whole=whole), False
    try:
        drafting.trace()
    except KeyboardInterrupt:
        if not drafting.has_traced:
            raise
        stopped = True
    return dataclasses.replace(drafting.draft(), stopped=stopped)


class Drafting:
    """Estimates the candidates of a space; each task is estimated once for each reply to it."""

    def __init__(self, space: SearchSpace, estimator: Estimator, *, whole: bool) -> None:
        self._space, self._estimator, self._whole = space, estimator, whole
        self._online = METHODS[estimator.job.method].online
        self._settled = estimator.ruled_out(space.candidates)
        """The estimates that do not change any more."""
        self._ruled_out = len(self._settled)
        self._tasks: Sequence[VariantTask] = ()
        self._known = Known(self._show)
        self._of_tasks: dict[int, tuple[EstimateReply, Mapping[str, Estimate]]] = {}
        self._by_formula = 0
        self._shown: str | None = None

    @property
    def has_traced(self) -> bool:
        """True if anything is known that a trace told."""
        return len(self._settled) > self._ruled_out or bool(self._known.replies)

    def trace(self) -> None:
        """Make all traces that may matter."""
        candidates = self._space.candidates
        some_fit = False
        if self._online and len(self._estimator.tasks(candidates)) > 1:
            some_fit = self._look_first()
        if self._whole or not some_fit:
            self._estimate(candidates)
            return
        named = named_knobs(self._estimator.job)
        while wave := next_wave(candidates, self._settled, named):
            self._estimate(wave)

    def draft(self) -> Draft:
        """Return what is known by now."""
        estimates, by_formula = dict(self._settled), self._by_formula
        for number, reply in self._known.replies.items():
            estimates |= self._estimates(number, reply)
            by_formula += len(self._tasks[number].members) if reply.by_formula else 0
        devices = self._estimator.job.devices.total
        return draft_of(self._space, estimates, devices, by_formula=by_formula)

    def _estimate(self, candidates: Sequence[Candidate]) -> None:
        """Estimate candidates; those that are ruled out have their estimates already."""
        self._tasks, self._of_tasks = self._estimator.tasks(candidates), {}
        self._estimator.replies(self._tasks, self._known)
        draft = self.draft()
        self._settled, self._by_formula = dict(draft.estimates), draft.by_formula
        self._known, self._tasks = Known(self._show), ()

    def _look_first(self) -> bool:
        """Estimate the leanest candidates with and without checkpointing before all others: where
        the method generates, a variant takes long. Their traces are found again.

        Returns:
            Whether one fits. If none does, what is larger needs no trace, where all candidates are
            looked at together.
        """
        ordered = sorted(self._space.candidates, key=expected_leanness)
        firsts = {one.values.get(CHECKPOINTING): one for one in reversed(ordered)}
        found = self._estimator.estimates(list(firsts.values()))
        self._settled |= found
        self._show()
        return any(estimate.fits for estimate in found.values())

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
