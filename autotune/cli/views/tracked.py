"""What a run says as it goes, its probes handed to trackers."""

from collections.abc import Sequence

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.terminal import TerminalListener
from autotune.errors import AutotuneError
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.past_run import reopen
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.trackers.sending import Sending


class TrackedTerminal(TerminalListener):
    """Prints what happens, and sends it to trackers; there may be none."""

    def __init__(
        self, console: PlainConsole, tools: Sequence[str], run: RunFolder, storage: str | None
    ) -> None:
        super().__init__(console)
        self._sending = Sending(tools, run, self._say)
        self._run, self._storage = run, storage
        self._job: Job | None = None

    def surveying(self, job: Job) -> None:
        super().surveying(job)
        self._job = job
        self._sending.start()

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        super().surveyed(facts, space, limit_bytes)
        assert self._job is not None
        self._sending.begin(self._job, facts)

    def expecting(self, expectations: Expectations) -> None:
        self._sending.expect(expectations)

    def probed(self, record: Record) -> None:
        super().probed(record)
        self._sending.probe(record)

    def finish(self) -> None:
        """The run has ended: send what it came to."""
        if not self._sending.tools:
            return
        try:
            past = reopen(self._run.path, self._storage)
        except AutotuneError:  # it ended before there was anything to send
            return
        self._say(f"sending what is left to {', '.join(self._sending.tools)} ...")
        self._sending.finish(past)

    def close(self) -> None:
        super().close()
        self._sending.close()
