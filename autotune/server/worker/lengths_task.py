"""Plans an ended plan's answer at other lengths, behind everything else, for the page's sliders."""

import json
from pathlib import Path
from typing import Any

from autotune.process.command import Command
from autotune.process.messages import read_json
from autotune.server.store.values import Lease
from autotune.server.worker.door import Door
from autotune.server.worker.lengths import FILE, lengths_jobs, lengths_points
from autotune.server.worker.limited_command import LimitedCommand
from autotune.server.worker.task import PLAN_NICENESS


class LengthsTask:
    """Plans that nobody waits for, one after the other.

    Args:
        lease: of the plan that has ended.
        folder: the work's folder; where it is deleted, the rest is left out.
        answer: of its result.
        memory_bytes: what all processes of a plan may take together.
    """

    def __init__(
        self,
        lease: Lease,
        folder: Path,
        answer: dict[str, Any],
        environment: dict[str, str | None],
        memory_bytes: int,
    ) -> None:
        self.lease, self._folder, self._environment = lease, folder, environment
        self._memory_bytes = memory_bytes
        self._left = lengths_jobs(lease.job, answer["knobs"])
        self._results: list[dict[str, Any]] = []
        self._command: LimitedCommand | None = None

    def look(self) -> None:
        """End a plan that takes more than it may."""
        if self._command is not None:
            self._command.look()

    def turn(self, door: Door, name: str) -> bool:
        """Go on; whether all is done, and sent.

        Raises:
            Away: the service does not answer.
            Lost: the work was deleted.
        """
        if self._command is not None:
            if self._command.exit_code is None:
                return False
            self._keep_result()
        if not self._folder.is_dir():
            return True
        if self._left:
            self._start(self._left.pop(0))
            return False
        if self._results:
            content = json.dumps(lengths_points(self._results)).encode()
            door.keep_file(name, self.lease.id, FILE, content)
        return True

    def end(self) -> None:
        """Leave it."""
        self._left.clear()
        if self._command is not None:
            self._command.end()

    def _start(self, job: str) -> None:
        record = self._folder / "lengths"
        record.mkdir(exist_ok=True)
        file = self._folder / "lengths.yaml"
        file.write_text(job, encoding="utf-8")
        command = Command(
            ["plan", file.name, "--all", "--record", str(record), *self.lease.arguments],
            folder=self._folder,
            output=record / "output.txt",
            errors=record / "errors.txt",
            environment=self._environment,
            niceness=PLAN_NICENESS,
        )
        self._command = LimitedCommand(
            command, memory_bytes=self._memory_bytes, limit_s=self.lease.limit_s
        )

    def _keep_result(self) -> None:
        file = self._folder / "lengths" / "result.json"
        result = read_json(file)
        if isinstance(result, dict):
            self._results.append(result)
            file.unlink()
        self._command = None
