"""The largest micro-batch of a changed job that is safe, found with few estimates. Pure."""

from collections.abc import Mapping, Sequence

from autotune.estimate.estimate import Estimate
from autotune.plan.questions.leanest import leanest_of_each_kind
from autotune.plan.questions.proposal import Proposal
from autotune.plan.questions.way import is_checked
from autotune.space.knobs import Candidate

NEARLY_LEANEST = 4
"""Number of the leanest candidates that are estimated where the first one is not safe."""


class Bisection:
    """A search among the candidates of a list of changes for the largest micro-batch that is safe.

    Args:
        known: the estimate of the leanest one, by its key; new ones are added.
    """

    def __init__(self, proposal: Proposal, known: dict[str, Estimate]) -> None:
        self.job, self._known = proposal.job, known
        self._ordered = leanest_of_each_kind(proposal.candidates)
        self._safe, self._unsafe = 0, len(self._ordered)
        """Index of the largest candidate known to be safe, and of the smallest known not to be."""
        self._nearly: Sequence[Candidate] = ()
        if not is_checked(known[proposal.candidates[0].key]):
            self._nearly, self._unsafe = proposal.candidates[1:NEARLY_LEANEST], 1

    def following(self, at_once: int) -> Sequence[Candidate]:
        """Return up to `at_once` candidates to estimate next, at equal distances; none: it is
        done."""
        if self._nearly:
            return self._nearly
        between = range(self._safe + 1, self._unsafe)
        count = min(at_once, len(between))
        return [
            self._ordered[between[(n + 1) * (len(between) + 1) // (count + 1) - 1]]
            for n in range(count)
        ]

    def hear(self, estimates: Mapping[str, Estimate]) -> None:
        """Take the estimates of those candidates, by their keys."""
        self._known.update(estimates)
        self._nearly = ()
        for index, candidate in enumerate(self._ordered):
            if candidate.key in estimates and is_checked(estimates[candidate.key]):
                self._safe = max(self._safe, index)
            elif candidate.key in estimates:
                self._unsafe = min(self._unsafe, index)
