"""A run's probes, handed to trackers beside what is said of them."""

from collections.abc import Sequence

from autotune.cli.echo import echo
from autotune.errors import AutotuneError
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.past_run import reopen
from autotune.run.session import Listener, Listeners
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.trackers.sending import Sending


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

    def beside(self, view: Listener) -> Listener:
        """Who hears of the run: those who watch it, and then the trackers."""
        self._view = view
        return Listeners(view, self) if self._chosen else view

    def surveying(self, job: Job) -> None:
        self._job = job
        self._sending.start()

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        assert self._job is not None
        self._sending.begin(self._job, facts)

    def expecting(self, expectations: Expectations) -> None:
        self._sending.expect(expectations)

    def probed(self, record: Record) -> None:
        self._sending.probe(record)

    def finish(self) -> None:
        """The run has ended: send what it came to."""
        if not self._sending.tools:
            return
        try:
            past = reopen(self._run.path, self._storage)
        except AutotuneError:  # it ended before there was anything to send
            return
        self._view.remarked(f"sending what is left to {', '.join(self._sending.tools)} ...")
        self._sending.finish(past)

    def close(self) -> None:
        """Nothing more is sent."""
        self._sending.close()

    def _warn(self, text: str) -> None:
        if self._quiet:
            echo(text, err=True)
        else:
            self._view.remarked(text)
