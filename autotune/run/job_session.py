"""A run of a job: its probes are short trainings of our own, and what it writes is a bundle."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.bundle.bundle import bundle_files, found_by
from autotune.engine.call import Call, result_of
from autotune.engine.launching import launcher_of
from autotune.errors import UserError
from autotune.plan.estimator import Estimator
from autotune.plan.questions.changes import Advice, TriedChange, offloading, single_changes
from autotune.plan.questions.ways import FASTEST, Advisor
from autotune.probe.measure import ProbeTask, probe_task, shares_its_host
from autotune.probe.protocol import Measurement
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.run.deadline import OutOfTime
from autotune.run.listener import follow_probe
from autotune.run.session import Result, Session
from autotune.run.verdict import Verification
from autotune.run.verify import expected_seconds, verify
from autotune.search.job_time import Work, work_of
from autotune.search.recommend import NothingFits, Ranked, Recommendation
from autotune.search.record import Record, counts_as_probe, excess_bytes
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate

UNTRIED = "changes that might make it fit: `autotune advise` estimates them"


@dataclass(frozen=True, kw_only=True)
class JobSession(Session):
    """A run of a job at work; `server` has the children that train."""

    most_launches = 3
    server: ChildServer

    def call(
        self, number: int, candidate: Candidate, *, to_beat: float | None, most_s: float
    ) -> Call:
        """Return the call of a short training in a child."""
        timed = not self.options.accept_noise
        task = self._task(self.space, candidate, to_beat, most_s, timed=timed)
        return Call(
            key=f"{number:04d}",
            folder=str(self.run.probe(number).path),
            request=task.plain(),
            alone=shares_its_host(task.request),
        )

    def _task(
        self,
        space: SearchSpace,
        candidate: Candidate,
        to_beat: float | None,
        most_s: float,
        *,
        timed: bool,
    ) -> ProbeTask:
        return probe_task(
            space.settings(candidate, str(self.run.output)),
            rows=self.run.rows,
            limit=self.limit_bytes,
            to_beat=to_beat,
            most_s=most_s,
            timed=timed,
            elsewhere=self.engine.is_remote,
        )

    def work(self, candidate: Candidate) -> Work:
        """Return how much the job trains, by the settings of a candidate."""
        return work_of(self.space.settings(candidate).config)

    def verification_s(self, ranked: Ranked) -> float:
        """Return the seconds that a launch of a few steps takes."""
        return expected_seconds(self.job, ranked, self.server.import_s)

    def write(self, recommendation: Recommendation, verification: Verification | None) -> None:
        """Write the bundle of a recommendation into the run's folder."""
        records = self.study.records()
        files = render(recommendation, self.run, self.space, records, verification)
        self.run.write_bundle(self.run.bundle, files)

    def launch(self, ranked: Ranked, probe_again: Callable[[], Measurement]) -> Verification:
        """Launch the bundle for a few steps, and judge it by its promise."""
        return verify(
            self.run,
            self.space.settings(ranked.candidate, str(self.run.output)),
            ranked,
            self.server,
            probe_again,
            self.deadline,
            self.listener.verification_stage,
            accept_noise=self.options.accept_noise,
            launcher=launcher_of(self.engine),
        )

    def with_remedies(self, result: Result, nothing: NothingFits) -> Result:
        """Return the result with changes that make the job fit: probed, or else estimated."""
        tried = tuple(self._try_changes(nothing))
        advice = self._advice(nothing, tried)
        left_out = (UNTRIED,) if self.deadline.left_s <= 0 else ()
        return replace(result, nothing_fits=nothing, tried=tried, advice=advice, left_out=left_out)

    def _what_if(self, space: SearchSpace, candidate: Candidate, name: str) -> Measurement:
        """Return a probe beside the search: it is not part of the study."""
        task = self._task(space, candidate, None, self.deadline.left_s, timed=False)
        folder = str(self.run.what_if / name)
        call = Call(
            key=f"what-if-{name}-{time.monotonic_ns()}",
            folder=folder,
            request=task.plain(),
            alone=True,
        )
        return result_of(self.engine, call, follow_probe(self.listener)).measurement()

    def _try_changes(self, nothing: NothingFits) -> Iterator[TriedChange]:
        """Probe the single changes of the job that might make it fit."""
        if nothing.nearest is None:
            return
        nearest = nothing.nearest.candidate
        away = offloading(self.job, self.facts.device.kind)
        for index, change in enumerate([*away, *single_changes(self.job, nearest)]):
            try:
                definition = load_definition(change.job.method)
                space = bind(definition, change.job, self.facts)
            except UserError:
                continue
            if self.deadline.left_s <= 0:
                return
            self.listener.trying(change.text)
            candidate = space.nearest(nearest.values)
            measurement = self._what_if(space, candidate, f"{index:02d}")
            if measurement.outcome == "interrupted":
                return
            excess = excess_bytes(measurement, self.allowed_bytes)
            yield TriedChange(
                text=change.text,
                kind=change.kind,
                fits=measurement.outcome == "ok" and (excess or 0) <= 0,
                measurement=measurement,
            )

    def _advice(self, nothing: NothingFits, tried: Sequence[TriedChange]) -> Advice | None:
        """Return what would make the job fit, by estimate; None where memory was not what it
        lacked, or a single change was found to do."""
        if nothing.nearest is None or any(change.fits for change in tried):
            return None
        self.listener.trying("more than one change, by estimate")
        with contextlib.suppress(OutOfTime), self.deadline.cuts():
            estimator = Estimator(
                job=self.job,
                facts=self.facts,
                limit=self.allowed_bytes,
                server=self.server,
                folder=self.run.path / "advice",
                rows=self.run.rows,
            )
            texts = [c.text for c in tried if c.measurement.outcome != "unsupported"]
            advisor = Advisor(estimator, tried=texts, effort=FASTEST)
            return advisor.advice(self.space, seen_to_fail=True)
        return None


def render(
    recommendation: Recommendation,
    run: RunFolder,
    space: SearchSpace,
    records: Sequence[Record],
    verification: Verification | None,
) -> dict[str, str]:
    """Return the files of a bundle that is launched with this very interpreter."""
    chosen = space.settings(recommendation.chosen.candidate, run.bundle_output)
    probes = sum(counts_as_probe(record) for record in records)
    return bundle_files(
        recommendation,
        chosen,
        python=sys.executable,
        origin=found_by(probes, len(space.candidates), chosen.facts.device.name),
        verification=verification.plain() if verification is not None else None,
    )
