"""One search on a simulated cluster: the loop, the flights, the study, the sampler and the rules of
the package over a recorded grid; the engine and the clock alone are made up."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import optuna

from autotune.engine.call import Call, Engine
from autotune.errors import MachineError
from autotune.job.job import Job
from autotune.probe.protocol import Measurement
from autotune.process.run_folder import RunFolder
from autotune.run import flights, loop
from autotune.run.listener import Listener
from autotune.run.session import Options, Session
from autotune.run.verdict import Verification
from autotune.search import study as studies
from autotune.search.job_time import Work
from autotune.search.recommend import Ranked, Recommendation, recommend
from autotune.search.record import Record
from autotune.search.sampler.params import guided_sampler
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.knobs import MICRO_BATCH, BoundKnob, Candidate
from benchmarks.scale.cluster import Clock, Failures, SimulatedEngine
from benchmarks.scale.courses import Course, course_of, recorded
from benchmarks.search.grid import Problem, knobs_of_default

GRIDS = Path(__file__).parents[1] / "search" / "grids"
WITHIN = 0.98
DEFAULT_MICRO_BATCH = 8
"""TRL's."""
GB = 1e9


@dataclass(frozen=True)
class Size:
    """Jobs whose candidates take so many GPUs.

    Attributes:
        model: for which that is usual; `model_gb` in bfloat16.
        longer: a probe takes than one on a single GPU; assumed.
    """

    gpus: int
    model: str
    model_gb: float
    longer: float


SIZES = {
    1: Size(1, "7B", 15, 1.0),
    8: Size(8, "14B", 29, 1.5),
    16: Size(16, "32B", 65, 2.0),
    64: Size(64, "70B", 141, 4.0),
}


@dataclass(frozen=True)
class Setting:
    """All that is varied.

    Attributes:
        cluster: its GPUs.
        gpus: of a candidate.
        job_hours: of the job with the best candidate.
        longer, noise: in parts of what is usual for the size, and recorded.
    """

    cluster: int = 1024
    gpus: int = 8
    at_once: int = 1
    job_hours: float = 10.0
    failures: Failures = Failures()
    longer: float = 1.0
    noise: float = 1.0


@dataclass(frozen=True, kw_only=True)
class SimulatedSession(Session):
    """A run whose calls name their candidate, and nothing else."""

    most_launches = 1

    def call(
        self, number: int, candidate: Candidate, *, to_beat: float | None, most_s: float
    ) -> Call:
        """Return the call of a simulated probe."""
        folder = str(self.run.probe(number).path)
        return Call(key=str(number), folder=folder, request={"candidate": candidate.key})

    def work(self, candidate: Candidate) -> Work:
        """Return one epoch, whose tokens a probe tells."""
        return Work(epochs=1.0, max_steps=None)

    def verification_s(self, ranked: Ranked) -> float:
        """Return nothing: it is not simulated."""
        return 0.0

    def write(self, recommendation: Recommendation, verification: Verification | None) -> None:
        """Write nothing."""

    def launch(self, ranked: Ranked, probe_again: Callable[[], Measurement]) -> Verification:
        """Refuse: nothing is launched here."""
        raise NotImplementedError


class ClockedEngine(Engine, Protocol):
    """An engine with a clock of its own."""

    clock: Clock


class ReadOnce(Study):
    """A study that reads each ended probe once, and not each time that it is asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._known: dict[int, Record] = {}
        super().__init__(*arguments, **options)

    def _record(self, number: int, attributes: dict[str, Any]) -> Record:
        if number not in self._known:
            record = super()._record(number, attributes)
            if record.measurement is None:
                return record
            self._known[number] = record
        return self._known[number]


def space_of(problem: Problem) -> SearchSpace:
    """Return the candidates of a problem as a bound space."""
    first = problem.candidates[0]
    defaults = {**knobs_of_default(problem.grid), MICRO_BATCH: DEFAULT_MICRO_BATCH}
    knobs = []
    for name in first.values:
        values = tuple({repr(c[name]): c[name] for c in problem.candidates}.values())
        default = defaults.get(name, values[0])
        knobs.append(
            BoundKnob(name=name, kind="speed", place="", values=values, default=default, why="")
        )
    nothing: Any = None  # what no part of the search asks for
    return SearchSpace(
        shape=nothing,
        facts=nothing,
        knobs=tuple(knobs),
        candidates=tuple(problem.candidates),
        exclusions=(),
        settings=nothing,
    )


@contextlib.contextmanager
def session_on(engine: ClockedEngine, problem: Problem) -> Iterator[SimulatedSession]:
    """Open a run of a problem on an engine, by whose clock it goes; its study is in memory."""
    space, expectations = space_of(problem), problem.expectations()
    estimates, allowed = expectations.estimates, problem.allowed_bytes
    sampler = guided_sampler(space, estimates, expectations.prior, allowed_bytes=allowed)
    memory = optuna.storages.InMemoryStorage()
    nothing: Any = None
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as where,
        mock.patch.object(flights, "time", engine.clock),
        mock.patch.object(studies, "time", engine.clock),
        mock.patch.object(studies, "open_storage", lambda place, make: memory),
    ):
        yield SimulatedSession(
            job=Job.model_validate({"model": "a/model", "dataset": {"lengths": {"max": 1024}}}),
            run=RunFolder(path=Path(where)),
            facts=nothing,
            space=space,
            study=ReadOnce(space, "memory", "scale", allowed_bytes=allowed, sampler=sampler),
            listener=Listener(),
            engine=engine,
            limit_bytes=problem.limit_bytes,
            allowed_bytes=allowed,
            expectations=expectations,
            options=Options(),
        )


def searched(session: Session, clock: Clock) -> float:
    """Search, and measure the fastest again, as `autotune/run/tuning.py` does.

    Returns:
        The time at which the search had ended.
    """
    loop.search(session)
    ended = clock.now
    while not loop.settle(session):
        loop.search(session)
        ended = clock.now
    return ended


def courses(setting: Setting, problem: Problem, seed: int) -> Callable[[Call, int], Course]:
    """Return the course of a call, by how often its candidate was begun with it."""
    about = recorded(GRIDS / f"{problem.grid.name}.jsonl")

    def course(call: Call, count: int) -> Course:
        return course_of(
            problem,
            call.request["candidate"],
            count,
            seed=seed,
            about=about,
            longer=setting.longer * SIZES[setting.gpus].longer,
            noise=setting.noise,
            job_s=3600 * setting.job_hours,
        )

    return course


def engine_of(setting: Setting, problem: Problem, seed: int) -> SimulatedEngine:
    """Return the cluster of a setting; its clock stands at 0."""
    return SimulatedEngine(
        courses(setting, problem, seed),
        Clock(),
        gpus=setting.cluster,
        lane_gpus=setting.gpus,
        at_once=setting.at_once,
        model_bytes=GB * SIZES[setting.gpus].model_gb,
        failures=setting.failures,
        seed=f"{problem.name} {seed}",
    )


def simulated(setting: Setting, problem: Problem, seed: int) -> dict[str, Any]:
    """Return the row of one search."""
    engine = engine_of(setting, problem, seed)
    with session_on(engine, problem) as session:
        searched_s, failure = None, None
        try:
            searched_s = round(searched(session, engine.clock), 1)
        except MachineError as error:
            failure = error.problems[0].what
        best = recommend(session.study.records(), session.allowed_bytes)
    engine.close()
    chosen = best.chosen.candidate if isinstance(best, Recommendation) else None
    return {
        "grid": problem.grid.name,
        "problem": problem.name,
        "seed": seed,
        "searched_s": searched_s,
        "wall_s": round(engine.clock.now, 1),
        "held_s": round(engine.held_s),
        "used_s": round(engine.used_s),
        "probes": len(engine.ended),
        "outcomes": _counts([m.outcome for _, _, m in engine.ended]),
        "lost": engine.lost,
        "first_s": _first_good(engine, problem),
        "share": round(problem.truth(chosen).tokens_per_s / problem.best, 4) if chosen else 0.0,
        "failure": failure,
    }


def _counts(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def _first_good(engine: SimulatedEngine, problem: Problem) -> float | None:
    """Return when the first candidate within 2% of the best was measured; None: never."""
    for at, call, measurement in engine.ended:
        speed = problem.grid.truths[call.request["candidate"]].tokens_per_s
        fits = (measurement.peak_memory_bytes or 0) <= problem.allowed_bytes
        if measurement.outcome == "ok" and fits and speed >= WITHIN * problem.best:
            return round(at, 1)
    return None
