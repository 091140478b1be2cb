"""A run's probes, handed to trackers beside what is said of them."""

from collections.abc import Sequence
from pathlib import Path

from autotune import __version__
from autotune.cli.command import echo
from autotune.errors import AutotuneError, in_one_line
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.run.listener import Listener, Listeners
from autotune.run.past_run import PastRun, reopen
from autotune.script.past_run import look_of_run, reopen_script
from autotune.script.protocol import Look
from autotune.space.bind import SearchSpace
from autotune.trackers.content import tracked_run
from autotune.trackers.sending import Sending
from autotune.trackers.tracker import TrackedRun


class TrackerListener(Sending):
    """Sends what happens to trackers; there may be none.

    Args:
        quiet: whether nothing is said as the run goes; a tracker that fails is named all the same.
    """

    def __init__(self, tools: Sequence[str], run: RunFolder, *, quiet: bool) -> None:
        super().__init__(tools, run, self._tell)
        self._chosen, self._quiet, self._view = bool(tools), quiet, Listener()
        self._job: Job | None = None

    def beside(self, view: Listener) -> Listener:
        """Return who hears of the run: those who watch it, and then the trackers."""
        self._view = view
        return Listeners(view, self) if self._chosen else view

    def surveying(self, job: Job) -> None:
        self._job = job
        self.start()

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        assert self._job is not None
        self.begin(tracked_run(self._job, facts, self._run))

    def finish_run(self) -> None:
        """Send what the run came to, once it has ended."""
        if not self.tools:
            return
        try:
            past, summary = self._past()
        except AutotuneError as error:  # damaged, or it ended before there was anything to send
            if self._tracked is not None:
                self._tell(f"nothing more is sent: {in_one_line(str(error))}")
            return
        self._view.remarked(f"sending what is left to {', '.join(self.tools)} ...")
        self.finish(past, summary)

    def _past(self) -> tuple[PastRun, TrackedRun]:
        """Return the run as it is on disk, and what trackers are told of it."""
        past = reopen(self._run.path)
        return past, tracked_run(past.job, past.facts, past.run)

    def _tell(self, text: str) -> None:
        if self._quiet:
            echo(text, err=True)
        else:
            self._view.remarked(text)


class ScriptTrackerListener(TrackerListener):
    """The same of the search of a script."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        self.begin(tracked_script(look_of_run(self._run), facts, self._run))

    def _past(self) -> tuple[PastRun, TrackedRun]:
        script = reopen_script(self._run.path)
        past = script.past
        return past, tracked_script(script.look, past.facts, past.run)


def tracked_script(look: Look, facts: Facts, run: RunFolder) -> TrackedRun:
    """Return what a tracker is told of a search as it begins; of the command no more than its
    script."""
    trainer = look.trainer.rpartition(".")[2]
    return TrackedRun(
        id=str(run.read(run.run)["study"]),
        name=run.path.name,
        folder=str(run.tracking),
        config={
            "script": Path(look.command_line[0]).name,
            "trainer": trainer,
            "model": look.model,
            "parameters": facts.model.parameters,
            "rows": facts.data.rows,
            "global_batch_size": look.global_batch,
            "device": facts.device.name,
            "devices": look.ways,
        },
        labels=[trainer, facts.device.name, f"autotune {__version__}"],
    )
