"""Plans an ended plan's answer at other lengths, behind everything else, for the page's sliders."""

import json
from pathlib import Path
from typing import Any

from autotune.process.command import Command
from autotune.process.messages import read_json
from autotune.server.store.values import Lease
from autotune.server.worker.door import Door
from autotune.server.worker.lengths import FILE, lengths_jobs, lengths_points

_NICENESS = 19


class LengthsTask:
    """Plans that nobody waits for, one after the other.

    Args:
        lease: of the plan that has ended.
        folder: the work's folder.
        answer: of its result.
    """

    def __init__(
        self, lease: Lease, folder: Path, answer: dict[str, Any], environment: dict[str, str | None]
    ) -> None:
        self.lease, self._folder, self._environment = lease, folder, environment
        self._left = lengths_jobs(lease.job, answer["knobs"])
        self._results: list[dict[str, Any]] = []
        self._command: Command | None = None

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
        if self._command is not None and self._command.exit_code is None:
            self._command.end()

    def _start(self, job: str) -> None:
        record = self._folder / "lengths"
        record.mkdir(exist_ok=True)
        file = self._folder / "lengths.yaml"
        file.write_text(job, encoding="utf-8")
        self._command = Command(
            ["plan", file.name, "--all", "--record", str(record), *self.lease.arguments],
            folder=self._folder,
            output=record / "output.txt",
            errors=record / "errors.txt",
            environment=self._environment,
            niceness=_NICENESS,
        )

    def _keep_result(self) -> None:
        file = self._folder / "lengths" / "result.json"
        result = read_json(file)
        if isinstance(result, dict):
            self._results.append(result)
            file.unlink()
        self._command = None
