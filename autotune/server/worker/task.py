"""One work as a command that runs: its folder, what it says, how it ends."""

import json
import shutil
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from autotune.process.command import Command
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.server.access.job_rules import CONFIG
from autotune.server.store.values import Ending, Lease
from autotune.server.worker.door import Door
from autotune.server.worker.tail import Tail

PLAN_NICENESS = 19
"""Plans stand back for probes, whose times count."""
_EVENTS, _RESULT, _OUTPUT, _ERRORS = "events.jsonl", "result.json", "output.txt", "errors.txt"
_INTERRUPTED = 130
_END_S = 60.0
"""After so long a command that was asked to end is ended."""
_MOST_TEXT = 200_000


class Task:
    """A leased work at work.

    Args:
        root: the folder that has a folder for each work.
        environment: of the command, in place of the worker's.
        memory_bytes: what all processes of a plan may take together.
    """

    def __init__(
        self, lease: Lease, root: Path, environment: dict[str, str | None], memory_bytes: int
    ) -> None:
        self.lease, self._memory = lease, memory_bytes
        self.folder = root / lease.id
        self._record = self.folder / f"attempt-{lease.attempt}"
        shutil.rmtree(self._record, ignore_errors=True)
        self._record.mkdir(parents=True)
        self._environment = {**environment, "AUTOTUNE_STORAGE": lease.study}
        self._write_job()
        self._command = Command(
            self._arguments(),
            folder=self.folder,
            output=self._record / _OUTPUT,
            errors=self._record / _ERRORS,
            environment=self._environment,
            niceness=PLAN_NICENESS if lease.kind == "plan" else 0,
        )
        self._tails = [
            Tail(self._record / _EVENTS, "events", plain=False),
            Tail(self._record / _ERRORS, "errors", plain=True),
        ]
        self._asked: float | None = None
        self._stopped_by_worker = False
        self._problem = ""

    @property
    def run(self) -> RunFolder:
        """The folder of the run itself."""
        return RunFolder(path=self.folder / "run")

    @property
    def has_ended(self) -> bool:
        """Whether the command has."""
        return self._command.exit_code is not None

    def look(self) -> None:
        """End a plan that takes too much memory, and a command that does not end when asked."""
        if self.has_ended:
            return
        if self.lease.kind == "plan" and self._command.resident_bytes > self._memory:
            self._problem = (
                f"error: the plan took more than the {self._memory / 2**30:.3g} GiB that the "
                "operator gives it (`plan_memory`)"
            )
            self._command.end()
        elif self._asked is not None and time.monotonic() - self._asked > _END_S:
            self._command.end()

    def stop(self, *, with_worker: bool) -> None:
        """Ask the command to end.

        Args:
            with_worker: whether the work is to go on later, with another worker.
        """
        if self._asked is None:
            self._asked, self._stopped_by_worker = time.monotonic(), with_worker
            self._command.interrupt()

    def end(self) -> None:
        """End the command now."""
        if not self.has_ended:
            self._command.end()

    def send(self, door: Door, name: str) -> bool:
        """Send what was said since; whether that is all.

        Raises:
            Away: the service does not answer.
            Lost: the work is not ours.
        """
        for tail in self._tails:
            while lines := tail.waiting():
                tail.arrived(door.send(name, self.lease, tail.source, tail.first, lines))
        return True

    def finish(self, door: Door, name: str) -> None:
        """Send the files that came out, and how it ended.

        Raises:
            Away: the service does not answer.
            Lost: the work is not ours.
        """
        code = self._command.exit_code
        assert code is not None
        if self.lease.kind == "run":
            self._send_file(door, name, "report.txt", self._report)
        self._send_file(door, name, "bundle.zip", self._bundle)
        door.finish(name, self.lease.id, self._ending(code))

    def _ending(self, code: int) -> Ending:
        errors = (self._record / _ERRORS).read_text(encoding="utf-8", errors="replace")
        problem = errors[errors.rfind("error: ") :] if "error: " in errors else errors[-2000:]
        failed = code not in (0, 1, 4)
        output = (self._record / _OUTPUT).read_text(encoding="utf-8", errors="replace")
        result = read_json(self._record / _RESULT)
        return Ending(
            attempt=self.lease.attempt,
            exit_code=code,
            result=result if isinstance(result, dict) else None,
            text=output[-_MOST_TEXT:],
            error=(self._problem or problem)[-4000:] if failed else "",
            interrupted=self._stopped_by_worker and code == _INTERRUPTED,
        )

    def _send_file(
        self, door: Door, name: str, file: str, content: Callable[[], bytes | None]
    ) -> None:
        data = content()
        if data is not None:
            door.keep_file(name, self.lease.id, file, data)

    def _bundle(self) -> bytes | None:
        """The bundle's files; its links are not followed."""
        plan = self.lease.kind == "plan"
        folder = self._record / "bundle" if plan else self.run.bundle
        if not folder.is_dir():
            return None
        memory = BytesIO()
        with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.write(path, f"bundle/{path.relative_to(folder)}")
        return memory.getvalue()

    def _report(self) -> bytes | None:
        """What `autotune report` prints."""
        if not self.run.facts.is_file():
            return None
        file = self._record / "report.txt"
        command = Command(
            ["report", str(self.run.path)],
            folder=self.folder,
            output=file,
            errors=self._record / "report-errors.txt",
            environment=self._environment,
        )
        ended = time.monotonic() + _END_S
        while command.exit_code is None and time.monotonic() < ended:
            time.sleep(0.05)
        command.end()
        return file.read_bytes() if command.exit_code == 0 else None

    def _arguments(self) -> list[str]:
        record = ["--record", str(self._record)]
        if self.lease.kind == "plan":
            return ["plan", "job.yaml", *record, *self.lease.arguments]
        if self.run.exists():
            return ["run", "--resume", str(self.run.path), *record]
        return ["run", "job.yaml", "--out", str(self.run.path), *record]

    def _write_job(self) -> None:
        self.run.write_text(self.folder / "job.yaml", self.lease.job)
        if self.lease.model_config_json is not None:
            self.run.write_text(self.folder / CONFIG, self.lease.model_config_json)
        about = {"id": self.lease.id, "kind": self.lease.kind, "attempt": self.lease.attempt}
        self.run.write_text(self.folder / "work.json", json.dumps(about))
