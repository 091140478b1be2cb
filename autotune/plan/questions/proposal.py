"""Lists of changes that are looked at while a job does not fit. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.job.job import Job
from autotune.plan.questions.changes import Change
from autotune.space.knobs import Candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposal:
    """A list of changes, the job that it makes, and what that may be trained with.

    Attributes:
        lean: the leanest candidate of all.
        candidates: those that differ in what decides about memory, the leanest first.
    """

    changes: tuple[Change, ...]
    job: Job
    lean: Candidate
    candidates: Sequence[Candidate] = ()

    @property
    def texts(self) -> frozenset[str]:
        """The changes, in words."""
        return frozenset(change.text for change in self.changes)

    @property
    def place(self) -> tuple[frozenset[str], str]:
        """The changes but the last, and the field of that."""
        return frozenset(change.text for change in self.changes[:-1]), self.changes[-1].field


def smallest_of_each_field(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The first of the lists that differ only in how much they change the last field."""
    firsts: dict[object, Proposal] = {}
    for proposal in proposals:
        firsts.setdefault(proposal.place, proposal)
    return list(firsts.values())
