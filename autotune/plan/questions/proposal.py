"""Lists of changes that are tried while a job does not fit. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.job.job import Job
from autotune.plan.questions.changes import Change
from autotune.plan.questions.leanest import decisive, leanest
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness


@dataclass(frozen=True, kw_only=True, eq=False)
class Proposal:
    """A list of changes, the job that it makes, and the space of that job.

    Attributes:
        bind: gives the space of that job; None: it has none. It is called where it matters: many
            devices have thousands of candidates.
    """

    changes: tuple[Change, ...]
    job: Job
    bind: Callable[[], SearchSpace | None]

    @property
    def is_possible(self) -> bool:
        """True if the job has a space."""
        return bool(self.candidates)

    @property
    def lean(self) -> Candidate:
        """The leanest candidate of all."""
        return self._leanest_first[0]

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The candidates that differ in what decides about memory, the leanest first; none: no
        space."""
        return self._leanest_first[1:]

    @cached_property
    def _leanest_first(self) -> Sequence[Candidate]:
        space = self.bind()
        if space is None:
            return ()
        return leanest(space), *sorted(decisive(space), key=expected_leanness)

    @property
    def texts(self) -> frozenset[str]:
        """The changes, in words."""
        return frozenset(change.text for change in self.changes)

    @property
    def place(self) -> tuple[frozenset[str], str]:
        """The changes but the last, and the field of the last."""
        return frozenset(change.text for change in self.changes[:-1]), self.changes[-1].field


def smallest_of_each_field(proposals: Sequence[Proposal]) -> Iterator[Proposal]:
    """Yield the first possible one among lists that differ only in how much they change the last
    field."""
    places: set[object] = set()
    for proposal in proposals:
        if proposal.place not in places and proposal.is_possible:
            places.add(proposal.place)
            yield proposal
