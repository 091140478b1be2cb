"""A run's probes, handed to trackers beside what is said of them."""

from collections.abc import Sequence

from autotune.cli.echo import echo
from autotune.cli.views.tracked_script import tracked_script
from autotune.errors import AutotuneError, in_one_line
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.listener import Listener, Listeners
from autotune.run.past_run import PastRun, reopen
from autotune.script.past_run import look_of_run, reopen_script
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.trackers.content import tracked_run
from autotune.trackers.sending import Sending
from autotune.trackers.tracker import TrackedRun


class TrackerListener(Listener):
    """Sends what happens to trackers; there may be none.

    Args:
        quiet: whether nothing is said as the run goes; a tracker that fails is named all the same.
    """

    def __init__(
        self, tools: Sequence[str], run: RunFolder, storage: str | None, *, quiet: bool
    ) -> None:
        self._chosen, self._quiet, self._view = bool(tools), quiet, Listener()
        self._sending = Sending(tools, run, self._warn)
        self._run, self._storage = run, storage
        self._job: Job | None = None
        self._begun = False

    def beside(self, view: Listener) -> Listener:
        """Return who hears of the run: those who watch it, and then the trackers."""
        self._view = view
        return Listeners(view, self) if self._chosen else view

    def surveying(self, job: Job) -> None:
        self._job = job
        self._sending.start()

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        assert self._job is not None
        self._begin(tracked_run(self._job, facts, self._run))

    def _begin(self, run: TrackedRun) -> None:
        self._sending.begin(run)
        self._begun = True

    def expecting(self, expectations: Expectations) -> None:
        self._sending.expect(expectations)

    def probed(self, record: Record) -> None:
        self._sending.probe(record)

    def finish(self) -> None:
        """The run has ended: send what it came to."""
        if not self._sending.tools:
            return
        try:
            past, summary = self._past()
        except AutotuneError as error:  # damaged, or it ended before there was anything to send
            if self._begun:
                self._warn(f"nothing more is sent: {in_one_line(str(error))}")
            return
        self._view.remarked(f"sending what is left to {', '.join(self._sending.tools)} ...")
        self._sending.finish(past, summary)

    def _past(self) -> tuple[PastRun, TrackedRun]:
        """Return the run as it is on disk, and what trackers are told of it."""
        past = reopen(self._run.path, self._storage)
        return past, tracked_run(past.job, past.facts, past.run)

    def close(self) -> None:
        """Nothing more is sent."""
        self._sending.close()

    def _warn(self, text: str) -> None:
        if self._quiet:
            echo(text, err=True)
        else:
            self._view.remarked(text)


class ScriptTrackerListener(TrackerListener):
    """The same of the search of a script."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        self._sending.start()
        words = self._run.read(self._run.script)["words"]
        self._begin(tracked_script(look_of_run(self._run), words, facts, self._run))

    def _past(self) -> tuple[PastRun, TrackedRun]:
        script = reopen_script(self._run.path)
        past = script.past
        return past, tracked_script(script.look, script.words, past.facts, past.run)
