"""What one run works with, who listens to it, and what it comes to."""

from dataclasses import dataclass

from autotune.expecter import Expecter
from autotune.facts import Facts
from autotune.job import Job
from autotune.probe.record import Record
from autotune.probe.runner import ProbeServer
from autotune.promise import Verification
from autotune.recommend import NothingFits, Recommendation
from autotune.run_folder import RunFolder
from autotune.search.study import Study
from autotune.space.knobs import Candidate
from autotune.space.spaces import SearchSpace
from autotune.what_if import TriedChange


class Listener:
    """Hears what happens; this one says nothing."""

    def surveying(self, job: Job) -> None:
        """The stack is loaded, the model looked at and the data tokenized."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        """The space is known and the search begins."""

    def measuring(self) -> None:
        """The rates of the device are measured, once for all runs on this machine."""

    def judged(self, candidate: Candidate, worth_probing: bool) -> None:
        """By its estimate a candidate is worth a probe, or cannot fit."""

    def probing(self, number: int, candidate: Candidate) -> None:
        """A probe starts."""

    def probed(self, record: Record) -> None:
        """A probe has ended."""

    def stopped(self, reason: str) -> None:
        """The search has ended."""

    def verifying(self, recommendation: Recommendation) -> None:
        """A bundle is being launched."""

    def verified(self, verification: Verification) -> None:
        """The launch has ended."""

    def trying(self, text: str) -> None:
        """Nothing fits, and a change of the job is tried."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run at work."""

    job: Job
    run: RunFolder
    facts: Facts
    space: SearchSpace
    study: Study
    server: ProbeServer
    listener: Listener
    limit_bytes: int
    """Memory a probe may take."""
    allowed_bytes: int
    """Memory a recommended candidate may take: the limit less the headroom."""
    expecter: Expecter
    """Says what a candidate is expected to take."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to: `outcome` is `recommended`, `nothing_fits` or `interrupted`."""

    outcome: str
    records: tuple[Record, ...]
    stop_reason: str
    space_size: int
    seconds: float = 0.0
    recommendation: Recommendation | None = None
    verification: Verification | None = None
    nothing_fits: NothingFits | None = None
    tried: tuple[TriedChange, ...] = ()
