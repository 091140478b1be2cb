"""The parent's side of `--track`: a process for each tool, which follows a file that grows.

Only the end of a run waits for them.
"""

import contextlib
import importlib.util
import json
import os
import shlex
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError, in_one_line
from autotune.plain_data import to_plain
from autotune.process.companion import Companion
from autotune.process.files import private_opener
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.listener import Listener
from autotune.run.past_run import PastRun
from autotune.search.record import Record
from autotune.trackers.content import entries, probe_entry
from autotune.trackers.tracker import OVER, TrackedRun

QUIET_S = 120.0
"""So long the end of a run waits for a tracker that sends nothing."""
WORKER = "autotune.trackers.worker"
_POLL_S = 0.1


def refuse_missing(tools: Collection[str]) -> None:
    """Refuse tools whose package is not installed; nothing of them is imported.

    Raises:
        UserError: so it is.
    """
    problems = []
    for tool in tools:
        package = importlib.util.find_spec(tool)
        if package is None or package.origin is None:  # the latter: a mere folder of that name
            hint = f"pip install {tool}"
            what = "its package is not installed"
            problems.append(Problem(where=f"--track {tool}", what=what, hint=hint))
    if problems:
        raise UserError(*problems)


class Sending(Listener):
    """Sends a run to tools as it goes.

    Args:
        warn: hears, once of each, that a tool failed; nothing is sent to it any more.
    """

    def __init__(self, tools: Collection[str], run: RunFolder, warn: Callable[[str], None]) -> None:
        self._waiting, self._run, self._warn = list(dict.fromkeys(tools)), run, warn
        self._workers: dict[str, Companion] = {}
        self._tracked: TrackedRun | None = None
        self._expectations: Expectations | None = None
        self.faults: list[str] = []
        """What was warned of."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that have not failed."""
        return tuple(self._workers)

    def start(self) -> None:
        """Begin to import the tools, while something else is done; once."""
        while self._waiting:
            tool = self._waiting.pop(0)
            try:
                self._run.tracking.mkdir(parents=True, exist_ok=True)
                if not self._workers:
                    open(self._feed, "wb", opener=private_opener).close()
                arguments = [tool, str(self._feed), str(self._sent(tool)), str(os.getpid())]
                self._workers[tool] = Companion(WORKER, arguments, log=self._log(tool))
            except OSError as error:
                self._fail(tool, str(error))

    def begin(self, run: TrackedRun) -> None:
        """Tell the tools of the run."""
        self.start()
        self._tracked = run
        self._send(to_plain(run))

    def expecting(self, expectations: Expectations) -> None:
        self._expectations = expectations

    def probed(self, record: Record) -> None:
        if self._tracked is not None:
            estimates = self._expectations.estimates if self._expectations else {}
            estimate = estimates.get(record.candidate.key)
            self._send(to_plain(probe_entry(self._tracked, record, estimate)))

    def finish(self, past: PastRun, run: TrackedRun) -> None:
        """Send what was not sent yet of a run, and what it came to; wait until it has arrived.

        Args:
            run: what the tools are told of it, where they were not yet.
        """
        if self._tracked is None:
            self.begin(run)
        for entry in entries(self._tracked or run, past):
            self._send(to_plain(entry))
        self._send(OVER)
        for tool, worker in list(self._workers.items()):
            if not self._arrived(tool, worker):
                self._fail(tool, f"not all was sent, and it did nothing more for {QUIET_S:g} s")
        self._look()

    def close(self) -> None:
        """End what still runs."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        with contextlib.suppress(OSError):
            self._feed.unlink()

    @property
    def _feed(self) -> Path:
        """The file of this process: another may report the same run meanwhile."""
        return self._run.tracking / f"feed-{os.getpid()}.jsonl"

    def _sent(self, tool: str) -> Path:
        return self._run.tracking / f"{tool}.json"

    def _log(self, tool: str) -> Path:
        return self._run.tracking / f"{tool}.log"

    def _send(self, message: Any) -> None:
        if not self._workers:
            return
        try:
            with self._feed.open("a", encoding="ascii") as file:
                file.write(json.dumps(message, allow_nan=False) + "\n")
        except OSError as error:  # a full disk: half a line may be there
            for tool in self.tools:
                self._fail(tool, str(error))
        self._look()

    def _arrived(self, tool: str, worker: Companion) -> bool:
        """True if a tool has sent all and ended; False once it has sent nothing for long."""
        sent, deadline = None, time.monotonic() + QUIET_S
        while worker.exit_code is None:
            now = self._sent(tool).stat().st_mtime_ns if self._sent(tool).exists() else None
            if now != sent:
                sent, deadline = now, time.monotonic() + QUIET_S
            elif time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _look(self) -> None:
        """Warn of what has failed."""
        for tool, worker in list(self._workers.items()):
            if code := worker.exit_code:
                data = read_json(self._sent(tool))
                fault = data.get("fault") if isinstance(data, dict) and code == 1 else None
                self._fail(tool, str(fault or f"it ended (exit code {code})"))

    def _fail(self, tool: str, fault: str) -> None:
        if worker := self._workers.pop(tool, None):
            worker.close()
        self.faults.append(f"{tool}: {in_one_line(fault)}")
        again = f"autotune report {shlex.quote(str(self._run.path))} --track {tool}"
        self._warn(
            f"tracking with {self.faults[-1]} (log: {self._log(tool)}). The search does not need "
            f"it; `{again}` sends the rest later"
        )
