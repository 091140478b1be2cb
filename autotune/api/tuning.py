"""`autotune.tune`: the fastest stable configuration of a job, measured; and `autotune.probe`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.api.answer import Answer
from autotune.api.jobs import definition_of, pinned, say
from autotune.errors import AutotuneError
from autotune.job.job import Job
from autotune.probe.protocol import Measurement
from autotune.probe.single import probe_alone
from autotune.process.files import refuse_used
from autotune.process.run_folder import RunFolder
from autotune.report.gather import content_of
from autotune.report.html import html_report
from autotune.report.result_lines import result_lines
from autotune.report.run_lines import RunLines, waiting_text
from autotune.report.sections import Table, sections
from autotune.run.listener import Listener
from autotune.run.opening import new_folder
from autotune.run.past_run import reopen
from autotune.run.session import Options, Result
from autotune.run.tuning import tune as tune_in
from autotune.search.recommend import Ranked
from autotune.search.record import Record
from autotune.space.knobs import Candidate
from autotune.space.trl_config import Settings, settings

INTERRUPTED = "interrupted"
_MEASURED = ("tokens_per_s", "relative_uncertainty", "step_time_s", "peak_memory_bytes")
_OF_A_PROBE = (
    *("outcome", "tokens_per_s", "step_time_s", "peak_memory_bytes"),
    *("seconds", "reason"),
)
"""Figures of a candidate, and of a probe, in a frame."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasuredAnswer(Answer):
    """The answer of a run.

    Attributes:
        folder: where the run is kept.
        result: all that it came to; its `outcome` is `recommended`, `nothing_fits`,
            `nothing_measured`, `nothing_stable` or `interrupted`.
    """

    folder: Path
    result: Result

    @property
    def lines(self) -> tuple[str, ...]:
        run = RunFolder(path=self.folder)
        lines = result_lines(self.result, str(run.bundle))
        if self.outcome == INTERRUPTED:
            lines = [*lines, run.interruption]
        return tuple(lines)

    @property
    def outcome(self) -> str:
        """The end of the run, in a word."""
        return self.result.outcome

    @property
    def safe(self) -> bool:
        verification = self.result.verification
        return verification is not None and verification.verified

    @property
    def bundle(self) -> Path | None:
        """The folder of the files that train it; None: nothing is recommended."""
        written = self.outcome == "recommended"
        return RunFolder(path=self.folder).bundle if written else None

    def report_html(self) -> str:
        """Return the whole report as one page, with its plots; it asks no host for anything.

        Raises:
            UserError: the run ended before there was anything to report.
        """
        return html_report(content_of(reopen(self.folder)))

    def write_bundle(self, folder: str | Path) -> Path:
        self._chosen()
        refuse_used(Path(folder))
        past = reopen(self.folder)
        found = past.recommendation(None if self._ranked is None else self._ranked.number)
        files = past.files(found, past.kept_verification(found))
        past.run.write_files(Path(folder).absolute(), files)
        return Path(folder).absolute()

    @property
    def _ranked(self) -> Ranked | None:
        found = self.result.recommendation
        return None if found is None else found.chosen

    @property
    def _best(self) -> tuple[Candidate, Measurement] | None:
        ranked = self._ranked
        return None if ranked is None else (ranked.candidate, ranked.measurement)

    def _rows(self, *, every: bool) -> Iterator[Mapping[str, Any]]:
        if every:
            yield from map(_row, self.result.records)
        elif (found := self.result.recommendation) is not None:
            for one in (found.chosen, *found.ties, *found.runners_up):
                m, knobs, probes = one.measurement, one.candidate.knobs, {"probes": one.readings}
                yield {**knobs, **{name: getattr(m, name) for name in _MEASURED}, **probes}

    def _settings(self) -> Settings | None:
        if self._best is None:
            return None
        past = reopen(self.folder)
        return settings(past.job, past.facts, self._best[0], past.run.bundle_output)

    def _table(self) -> tuple[Table | None, Sequence[str]]:
        if not self.result.records:
            return None, ()
        try:
            candidates = next(sections(content_of(reopen(self.folder))))
        except AutotuneError:  # its folder was removed, or its study cannot be read now
            return None, ()
        return candidates.tables[0], candidates.text


def _row(record: Record) -> dict[str, Any]:
    """Return a probe; one that was cut short has an outcome of None."""
    figures = {name: getattr(record.measurement, name, None) for name in _OF_A_PROBE}
    return {"probe": record.number, **record.candidate.knobs, **figures}


def tune(
    job: Job,
    folder: str | Path | None = None,
    *,
    history: bool = True,
    verify: bool = True,
    accept_noise: bool = False,
    listener: Listener | None = None,
) -> MeasuredAnswer:
    """Find the fastest stable configuration of a job by short real training steps on this machine's
    devices, and write its verified bundle. An interrupt (Ctrl-C, a notebook's stop) ends it with
    what is known by then.

    Args:
        folder: where everything is kept, new or empty; None: `runs/job-TIME`.
        history: whether to use and keep what runs of this user measured.
        verify: whether to launch the bundle in the end.
        accept_noise: whether to rank probes that ran while others took the cores, too; the bundle
            is then never verified.
        listener: hears what happens; None: lines on stderr, one a probe.

    Raises:
        UserError: the job or the folder cannot be.
        MachineError: the machine cannot do it.
    """
    run = RunFolder(path=Path(folder or new_folder("job")).absolute())
    heard = listener or RunLines(say)
    options = Options(history=history, verify=verify, accept_noise=accept_noise)
    result = tune_in(job, definition_of(job), run, listener=heard, options=options)
    return MeasuredAnswer(folder=run.path, result=result)


def probe(job: Job, knobs: Mapping[str, Any] | None = None) -> Measurement:
    """Measure one candidate of a job by a short real training: how it ended (`outcome`, `reason`),
    `tokens_per_s`, `step_time_s`, `peak_memory_bytes` and more.

    Args:
        knobs: the value of some, or all of an answer's; defaults stand for the rest.

    Raises:
        UserError: the job or the knobs cannot be.
        MachineError: the machine cannot do it.
    """
    job = pinned(job, knobs or {})
    return probe_alone(job, definition_of(job), lambda holder: say(waiting_text(holder)))[1]
