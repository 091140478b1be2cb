"""What one run works with, who listens to it, and what it comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.questions.advice import Advice
from autotune.plan.questions.changes import TriedChange
from autotune.process.run_folder import RunFolder
from autotune.process.server import ProbeServer
from autotune.run.expectations import Expectations
from autotune.run.verdict import Verification
from autotune.search import SAMPLERS
from autotune.search.job_time import Saving
from autotune.search.recommend import NothingFits, Ranked, Recommendation
from autotune.search.record import Record
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate


class Listener:
    """Hears what happens; this one says nothing."""

    def surveying(self, job: Job) -> None:
        """The stack is loaded, the model looked at and the data tokenized."""

    def starting_anew(self, reason: str) -> None:
        """No process can be forked here; each imports the stack by itself."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        """The space is known and the search begins."""

    def measuring(self) -> None:
        """The rates of the device are measured, once for all runs on this machine."""

    def estimating(self, candidates: int) -> None:
        """Memory and speed of all candidates are estimated."""

    def estimated(self, done: int, of: int) -> None:
        """So many of the candidates that have to be traced are estimated."""

    def ruled_out(self, reasons: Mapping[str, str]) -> None:
        """These candidates, by key, need no probe now, each for its reason."""

    def probing(self, number: int, candidate: Candidate) -> None:
        """A probe starts."""

    def probed(self, record: Record) -> None:
        """A probe has ended."""

    def stopped(self, reason: str) -> None:
        """The search has ended."""

    def settling(self, group: Sequence[Ranked]) -> None:
        """The fastest are measured again, in turns."""

    def verifying(self, recommendation: Recommendation) -> None:
        """A bundle is being launched."""

    def verified(self, verification: Verification) -> None:
        """The launch has ended."""

    def trying(self, text: str) -> None:
        """Nothing fits, and a change of the job is tried."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run goes, beside its job.

    Attributes:
        sampler: one of `search.SAMPLERS`.
        history: whether measurements of earlier runs order the first guesses.
        verify: whether the bundle is launched in the end.
    """

    sampler: str = SAMPLERS[0]
    history: bool = True
    verify: bool = True


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
    expectations: Expectations
    """What each candidate is expected to take."""
    options: Options


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
    advice: Advice | None = None
    """Where no single change of the job was found to fit: what would, by estimate."""
    saving: Saving | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Candidates, by key, that needed no probe, and why."""
