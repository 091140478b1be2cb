"""The one thing that a run works with, whatever it measures; and what it comes to.

Two kinds of training are measured: a job's (`job_session.py`) and that of a user's own script
(`script/session.py`). All else is the same for both: the opening, the loop, the conclusion.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autotune.engine.call import Call, Engine
from autotune.engine.opening import EngineOptions
from autotune.errors import Problem
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.questions.changes import Advice, TriedChange
from autotune.probe.protocol import Measurement
from autotune.process.run_folder import RunFolder
from autotune.run.deadline import Deadline
from autotune.run.expectations import Expectations
from autotune.run.listener import Listener
from autotune.run.recipe_values import UnprobedValue
from autotune.run.verdict import Verification
from autotune.search.job_time import Saving, Work
from autotune.search.recommend import NothingFits, Ranked, Recommendation
from autotune.search.record import Record
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a run beside its job.

    Attributes:
        history: whether measurements of earlier runs order the first guesses.
        verify: whether the bundle is launched in the end.
        accept_noise: whether probes count that ran while others took the cores.
        engine: what runs the probes.
    """

    history: bool = True
    verify: bool = True
    accept_noise: bool = False
    engine: EngineOptions = EngineOptions()


@dataclass(frozen=True, kw_only=True)
class Session(ABC):
    """A run at work.

    Attributes:
        engine: runs its probes.
        limit_bytes: memory that a probe may take.
        allowed_bytes: memory that a recommended candidate may take: the limit less the headroom.
        expectations: what each candidate is expected to take.
        deadline: when everything has to be over.
        earlier: probes that the run had when this session began; theirs are the numbers below it.
    """

    default_words: ClassVar[str] = "the stack's defaults"
    """What the default candidate is, as a saving is held against it."""
    most_launches: ClassVar[int]
    """How many recommendations are launched until one holds."""

    job: Job
    run: RunFolder
    facts: Facts
    space: SearchSpace
    study: Study
    listener: Listener
    engine: Engine
    limit_bytes: int
    allowed_bytes: int
    expectations: Expectations
    options: Options
    deadline: Deadline = Deadline()
    earlier: int = 0

    @property
    def devices(self) -> int:
        """Devices among which the rows of an optimizer step are divided."""
        return self.job.devices.total

    @property
    def launching(self) -> str:
        """The command that launches what was written, and was not verified."""
        return f"autotune verify {shlex.quote(str(self.run.path))}"

    @abstractmethod
    def call(
        self, number: int, candidate: Candidate, *, to_beat: float | None, most_s: float
    ) -> Call:
        """Return the call that measures a candidate as probe `number`.

        Args:
            to_beat: tokens/s of the fastest so far.
            most_s: seconds that it may take, where there are fewer left than its own.
        """

    @abstractmethod
    def work(self, candidate: Candidate) -> Work:
        """Return how much there is to train."""

    @abstractmethod
    def verification_s(self, ranked: Ranked) -> float:
        """Return the expected seconds of a candidate's verification."""

    @abstractmethod
    def write(self, recommendation: Recommendation, verification: Verification | None) -> None:
        """Write what launches a recommendation into the run's folder."""

    @abstractmethod
    def launch(self, ranked: Ranked, probe_again: Callable[[], Measurement]) -> Verification:
        """Launch what was written, and judge it by what the candidate's probes promised.

        Args:
            probe_again: measures the candidate anew, where the machine may have changed.
        """

    def with_remedies(self, result: "Result", nothing: NothingFits) -> "Result":
        """Return the result that nothing fits, with changes that would help; none are known
        here."""
        return replace(result, nothing_fits=nothing)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run: `outcome` is `recommended`, `nothing_fits`, `nothing_measured` (no probe
    told whether anything fits), `nothing_stable` (the machine was too busy) or `interrupted`."""

    outcome: str
    records: tuple[Record, ...]
    stop_reason: str
    space_size: int
    space: SearchSpace | None = None
    """None: it was not known yet."""
    devices: int = 1
    seconds: float = 0.0
    recommendation: Recommendation | None = None
    verification: Verification | None = None
    nothing_fits: NothingFits | None = None
    nothing_measured: Problem | None = None
    """Why nothing was measured, or nothing stable."""
    tried: tuple[TriedChange, ...] = ()
    advice: Advice | None = None
    """By estimate, where no single change of the job was found to fit."""
    saving: Saving | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Candidates, by key, that needed no probe, and why."""
    unprobed: tuple[UnprobedValue, ...] = ()
    """Values that the job lists and no probe has measured."""
    left_out: tuple[str, ...] = ()
    """What the budget had no room for, as sentences."""
