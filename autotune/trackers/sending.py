"""The parent's side of `--track`: a process for each tool; only the end of a run waits for them."""

import importlib.util
import shlex
from collections.abc import Callable, Collection

from autotune.errors import Problem, UserError, in_one_line
from autotune.process.companion import Companion
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.past_run import PastRun
from autotune.search.record import Record
from autotune.trackers.content import entries, probe_entry
from autotune.trackers.tracker import Entry, TrackedRun

QUIET_S = 120.0
"""So long the end of a run waits for a tracker that sends nothing."""
WORKER = "autotune.trackers.worker"


def refuse_missing(tools: Collection[str]) -> None:
    """Refuse tools whose package is not installed; nothing of them is imported.

    Raises:
        UserError: so it is.
    """
    problems = []
    for tool in tools:
        found = importlib.util.find_spec(tool)
        if found is None or found.origin is None:  # the latter: a mere folder of that name
            hint = f"pip install {tool}"
            what = "its package is not installed"
            problems.append(Problem(where=f"--track {tool}", what=what, hint=hint))
    if problems:
        raise UserError(*problems)


class Sending:
    """Sends a run to tools as it goes.

    Args:
        warn: hears, once of each, that a tool failed; nothing is sent to it any more.
    """

    def __init__(self, tools: Collection[str], run: RunFolder, warn: Callable[[str], None]) -> None:
        self._choice, self._run, self._warn = tools, run, warn
        self._workers: dict[str, Companion] = {}
        self._facts: TrackedRun | None = None
        self._expectations: Expectations | None = None
        self.faults: list[str] = []
        """What was warned of."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Those that have not failed."""
        return tuple(self._workers)

    def start(self) -> None:
        """Begin to import the tools, while something else is done."""
        for tool in dict.fromkeys(self._choice):
            try:
                self._run.tracking.mkdir(parents=True, exist_ok=True)
                marks, log = (self._run.tracking / f"{tool}.{kind}" for kind in ("json", "log"))
                self._workers[tool] = Companion(WORKER, [tool, str(marks)], log=log)
            except OSError as error:
                self._fail(tool, str(error))

    def begin(self, run: TrackedRun) -> None:
        """Tell the tools of the run."""
        if not self._workers:
            return
        self._facts = run
        for worker in self._workers.values():
            worker.send(self._facts.plain())

    def expect(self, expectations: Expectations) -> None:
        """Send with each probe what was expected of it."""
        self._expectations = expectations

    def probe(self, record: Record) -> None:
        """Send a probe that has ended."""
        if self._workers and self._facts is not None:
            estimates = self._expectations.estimates if self._expectations else {}
            self._send(probe_entry(self._facts, record, estimates.get(record.candidate.key)))

    def finish(self, past: PastRun, run: TrackedRun) -> None:
        """Send what was not sent yet of a run, and what it came to; wait until it has arrived.

        Args:
            run: what the tools are told of it, where they were not yet.
        """
        if self._facts is None:
            self.begin(run)
        if self._facts is None:
            return
        for entry in entries(self._facts, past):
            self._send(entry)
        for tool, worker in list(self._workers.items()):
            if not worker.finish(QUIET_S):
                self._fail(tool, f"not all was sent, and it did nothing more for {QUIET_S:g} s")
        self._look()

    def close(self) -> None:
        """End what still runs."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _send(self, entry: Entry) -> None:
        for worker in self._workers.values():
            worker.send(entry.plain())
        self._look()

    def _look(self) -> None:
        """Hear what has failed."""
        for tool, worker in list(self._workers.items()):
            code = worker.exit_code
            faults = [line["fault"] for line in worker.lines() if "fault" in line]
            if faults:
                self._fail(tool, faults[0])
            elif code:
                self._fail(tool, f"it ended (exit code {code})")

    def _fail(self, tool: str, fault: str) -> None:
        if worker := self._workers.pop(tool, None):
            worker.close()
        self.faults.append(f"{tool}: {in_one_line(fault)}")
        again = f"autotune report {shlex.quote(str(self._run.path))} --track {tool}"
        self._warn(
            f"tracking with {self.faults[-1]} (log: {self._run.tracking / f'{tool}.log'}). The "
            f"search does not need it; `{again}` sends the rest later"
        )
