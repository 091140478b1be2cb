"""`autotune.tune`: the fastest stable configuration of a job, measured; and `autotune.probe`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.api.answer import Answer
from autotune.api.frame import frame, probe_row, ranked_row
from autotune.api.jobs import definition_of, pinned, say
from autotune.errors import AutotuneError
from autotune.job.job import Job, KnobValue
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
from autotune.space.trl_config import Settings, settings

if TYPE_CHECKING:
    import pandas as pd

INTERRUPTED = "interrupted"


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
    def knobs(self) -> dict[str, KnobValue] | None:
        return None if self._ranked is None else self._ranked.candidate.knobs

    @property
    def tokens_per_s(self) -> float | None:
        return None if self._ranked is None else self._ranked.tokens_per_s

    @property
    def peak_memory_bytes(self) -> int | None:
        return None if self._ranked is None else self._ranked.measurement.peak_memory_bytes

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

    def to_frame(self, *, all: bool = False) -> "pd.DataFrame":
        if all:
            return frame([probe_row(record) for record in self.result.records])
        found = self.result.recommendation
        ranked = [] if found is None else [found.chosen, *found.ties, *found.runners_up]
        return frame([ranked_row(candidate) for candidate in ranked])

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

    def _settings(self) -> Settings | None:
        if self._ranked is None:
            return None
        past = reopen(self.folder)
        return settings(past.job, past.facts, self._ranked.candidate, past.run.bundle_output)

    def _table(self) -> tuple[Table | None, Sequence[str]]:
        if not self.result.records:
            return None, ()
        try:
            candidates = next(sections(content_of(reopen(self.folder))))
        except AutotuneError:  # its folder was removed, or its study cannot be read now
            return None, ()
        return candidates.tables[0], candidates.text


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
