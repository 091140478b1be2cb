"""What one run works with, who listens to it, and what it comes to."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from autotune.errors import Problem
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.progress import Progress
from autotune.plan.questions.changes import TriedChange
from autotune.plan.questions.way import Advice
from autotune.probe.measure import measure_candidate
from autotune.probe.protocol import Measurement
from autotune.probe.survey import allowed_memory, memory_limit
from autotune.process.limits import Watcher
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.run.deadline import Deadline, OutOfTime
from autotune.run.estimates import by_formula, expected
from autotune.run.expectations import Expectations
from autotune.run.opening import Options, facts_of, recover, space_of, study_of
from autotune.run.recipe_values import UnprobedValue
from autotune.run.standing import ProbeSteps, Standing
from autotune.run.verdict import Verification
from autotune.run.verify import expected_seconds
from autotune.search.job_time import Saving, Work, work_of
from autotune.search.recommend import NothingFits, Ranked, Recommendation
from autotune.search.record import Record
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate

ESTIMATING = 0.5
"""Of the time that the survey leaves of a total budget so much may go into estimates (once what it
takes to import the stack is taken off: where they are cut, it is imported again); the rest is for
probes and the verification. Chosen, not measured."""


class Listener(Progress):
    """Hears what happens in a run; this one says nothing."""

    def waiting(self, holder: str) -> None:
        """Another process has the devices; this one waits."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        """The space is known and the search begins."""

    def ruled_out(self, reasons: Mapping[str, str]) -> None:
        """These candidates, by key, need no probe now, each for its reason."""

    def restored(self, probes: int, fault: str) -> None:
        """The study was gone: it was made anew of so many probes."""

    def unestimated(self, seconds: float) -> None:
        """The traces did not end within their part of the total budget: formulas stand for them."""

    def expecting(self, expectations: Expectations) -> None:
        """What is expected of each candidate is known."""

    def standing(self, standing: Standing) -> None:
        """The search is between two probes."""

    def probing(self, number: int, candidate: Candidate) -> None:
        """A probe starts."""

    def stepping(self, steps: ProbeSteps) -> None:
        """The running probe has got so far."""

    def probed(self, record: Record) -> None:
        """A probe has ended."""

    def stopped(self, reason: str) -> None:
        """The search has ended."""

    def settling(self, group: Sequence[Ranked]) -> None:
        """The fastest are measured again, in turns."""

    def verifying(self, recommendation: Recommendation) -> None:
        """A bundle is being launched."""

    def verification_stage(self, stage: str, seconds: float) -> None:
        """A stage of a verification is over (`launch_stages.py` has their names)."""

    def verified(self, verification: Verification) -> None:
        """The launch has ended."""

    def trying(self, text: str) -> None:
        """Nothing fits, and a change of the job is tried."""

    def remarked(self, text: str) -> None:
        """Something is to be said that is no event of the run."""


class Listeners(Listener):
    """Hear of the same run, one after the other."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)

        def tell(*arguments: Any, **named: Any) -> None:
            for listener in self._listeners:
                getattr(listener, name)(*arguments, **named)

        return tell


def follow_probe(listener: Listener, watch: Watcher | None = None) -> Watcher:
    """Lets a listener follow a probe, and `watch` end it."""
    steps = ProbeSteps()

    def hear(event: dict[str, Any]) -> str | None:
        nonlocal steps
        steps = steps.after(event)
        listener.stepping(steps)
        return None if watch is None else watch(event)

    return hear


@dataclass(frozen=True, kw_only=True)
class SearchSession(ABC):
    """What the loop works with, whatever it probes."""

    job: Job
    run: RunFolder
    facts: Facts
    space: SearchSpace
    study: Study
    listener: Listener
    limit_bytes: int
    """Memory a probe may take."""
    allowed_bytes: int
    """Memory a recommended candidate may take: the limit less the headroom."""
    expectations: Expectations
    """What each candidate is expected to take."""
    options: Options
    deadline: Deadline = Deadline()
    """When everything has to be over."""
    estimates_cut: bool = False
    """Whether there was no time to trace: what is expected is by formula, and of memory alone."""

    @abstractmethod
    def measure(
        self,
        number: int,
        candidate: Candidate,
        *,
        watch: Watcher | None,
        to_beat: float | None,
        most_s: float,
    ) -> Measurement:
        """Return the measurement of probe `number`.

        Args:
            watch: ends it.
            to_beat: tokens/s of the fastest so far.
            most_s: seconds that it may take, where there are fewer left than its own.
        """

    @abstractmethod
    def work(self, candidate: Candidate) -> Work:
        """Return how much there is to train."""

    @abstractmethod
    def verification_s(self, ranked: Ranked) -> float:
        """Return what the verification of a candidate is expected to take, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Session(SearchSession):
    """One run of a job at work."""

    server: ChildServer

    def measure(
        self,
        number: int,
        candidate: Candidate,
        *,
        watch: Watcher | None,
        to_beat: float | None,
        most_s: float,
    ) -> Measurement:
        """Return the measurement of a short training in a child."""
        return measure_candidate(
            self.server,
            self.run.probe(number),
            self.job,
            self.facts,
            candidate,
            rows=self.run.rows,
            output_dir=self.run.output,
            limit=self.limit_bytes,
            watch=watch,
            to_beat=to_beat,
            most_s=most_s,
        )

    def work(self, candidate: Candidate) -> Work:
        """Return how much the job trains, by the settings of a candidate."""
        return work_of(self.space.settings(candidate).config)

    def verification_s(self, ranked: Ranked) -> float:
        """Return what it takes to launch a bundle for a few steps."""
        return expected_seconds(self.job, ranked, self.server.import_s)

    @classmethod
    def open(
        cls,
        job: Job,
        definition: SpaceDefinition,
        run: RunFolder,
        server: ChildServer,
        storage: str | None,
        listener: Listener,
        deadline: Deadline,
    ) -> Self:
        """Return everything that a run needs, made now or as it was left.

        Raises:
            UserError: the job cannot be, or the run's files have changed.
            MachineError: the machine cannot do it.
            OutOfTime: the total budget has ended before model and data were known.
        """
        with deadline.cuts():
            facts = facts_of(job, run, server, listener)
        limit, allowed = memory_limit(job, facts.device), allowed_memory(job, facts.device)
        space = space_of(definition, job, facts, run)
        listener.surveyed(facts, space, limit)
        estimating_s = ESTIMATING * max(deadline.left_s - server.import_s, 0.0)
        untimely = False
        try:
            with deadline.cuts(keep_s=deadline.left_s - estimating_s):
                expectations = expected(job, facts, space, run, server, limit, listener)
        except OutOfTime:
            listener.unestimated(estimating_s)
            expectations, untimely = by_formula(job, facts, space, run, server, limit), True
        listener.expecting(expectations)
        # A formula tells what cannot fit; without speeds the stack's defaults are the better start.
        guide = replace(expectations, estimates={}) if untimely else expectations
        study, options = study_of(
            job, facts, space, run, storage, guide, allowed, listener.restored
        )
        recover(study, run)
        return cls(
            job=job,
            run=run,
            facts=facts,
            space=space,
            study=study,
            server=server,
            listener=listener,
            limit_bytes=limit,
            allowed_bytes=allowed,
            expectations=expectations,
            options=options,
            deadline=deadline,
            estimates_cut=untimely,
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to: `outcome` is `recommended`, `nothing_fits`, `nothing_measured` (no probe
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
    """Where no single change of the job was found to fit: what would, by estimate."""
    saving: Saving | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Candidates, by key, that needed no probe, and why."""
    unprobed: tuple[UnprobedValue, ...] = ()
    """Values that the job lists and no probe has measured."""
    left_out: tuple[str, ...] = ()
    """What the budget had no room for, as sentences."""
