"""The command of one work: its folder, its limits of memory and time, its end."""

import json
import math
import shutil
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from autotune.engine.opening import EngineOptions
from autotune.errors import EXIT_INTERRUPTED, EXIT_MACHINE
from autotune.process.companion import Command
from autotune.process.messages import read_json
from autotune.process.run_folder import OUTPUT, RESUMPTION, RunFolder
from autotune.server.access.job_rules import CONFIG
from autotune.server.store.values import ENDS, Ending, Lease
from autotune.server.worker.door import Door, Refused
from autotune.server.worker.output import Shown, Tail

CANCEL_S, GIVE_UP_S = 1.5, 30.0
"""Time for a command to end after a user, or the operator's limits, asked it to."""
DEVICES_S = 8.0
"""Time for a run to give a cluster's devices back; else they are free ten minutes later."""
REPORT_S = 60.0
"""Time for a report to be made."""
FIRST_S, PLAN_NICENESS = 3.0, 15
"""After its first figures a plan stands back for probes, whose times count."""
REPORT, REPORT_PAGE = "report.txt", "report.html"
_EVENTS, _RESULT, _OUTPUT, _ERRORS = "events.jsonl", "result.json", "output.txt", "errors.txt"
_MOST_TEXT, _SIGNALS = 200_000, 128


class Task:
    """A leased work and its command.

    Args:
        root: the folder that has a folder for each work.
        memory_bytes: limit of all processes of a plan together.
        engine: of a run.

    Attributes:
        problem: the limit that its command broke, as an error; empty: none.
        lost: whether it is another worker's now.
        is_reported: whether the service knows how it ended: then it has no lease any more.

    Methods that take a door raise what it raises.
    """

    def __init__(self, lease: Lease, root: Path, memory_bytes: int, engine: EngineOptions) -> None:
        self.lease, self._engine = lease, engine
        self.folder = root / lease.id
        self._record = self.folder / f"attempt-{lease.attempt}"
        shutil.rmtree(self._record, ignore_errors=True)
        self._record.mkdir(parents=True)
        self._shown = Shown(root, lease.id)
        self._environment: dict[str, str | None] = {
            "AUTOTUNE_TOKEN": None,
            "AUTOTUNE_STORAGE": lease.study,
            OUTPUT: "output",
            RESUMPTION: f"the button Resume, or POST /api/v1/runs/{lease.id}/resume",
        }
        self._write_job()
        is_plan = lease.kind == "plan"
        self._command = Command(
            self._arguments(),
            folder=self.folder,
            output=self._record / _OUTPUT,
            errors=self._record / _ERRORS,
            environment=self._environment,
        )
        self._memory_bytes = memory_bytes if is_plan else None
        self._niceness = PLAN_NICENESS if is_plan else 0
        self._began, self._end_at = time.monotonic(), math.inf
        self.problem = ""
        self._tails = list(self._every_tail())
        self._is_cancelled = self.lost = self.is_reported = False
        self._report: Command | None = None
        self._report_until = 0.0
        self._refused: dict[str, str] = {}

    @property
    def run(self) -> RunFolder:
        """The folder of the run itself."""
        return RunFolder(path=self.folder / "run")

    @property
    def has_ended(self) -> bool:
        """True if the command has."""
        return self._command.exit_code is not None

    def look(self) -> None:
        """End the command if it takes too much memory or time, or does not end when asked."""
        now = time.monotonic()
        if self.has_ended:
            return
        if self._niceness and now - self._began > FIRST_S:
            self._command.stand_back(self._niceness)
            self._niceness = 0
        if self._memory_bytes is not None and self._command.resident_bytes > self._memory_bytes:
            self.problem = (
                f"error: the plan took more than the {self._memory_bytes / 2**30:.3g} GiB that the "
                "operator gives it (`plan_memory`)"
            )
            self._command.end()
        elif now > self._end_at:
            self._command.end()
        elif self.lease.limit_s is not None and now - self._began > self.lease.limit_s:
            self.give_up(f"it took longer than the {self.lease.limit_s / 60:.3g} minutes")

    def give_up(self, why: str) -> None:
        """Ask the command to end, for it takes more than the operator gives it."""
        self.problem = self.problem or f"error: {why} that the operator gives it"
        self._stop(GIVE_UP_S)

    def cancel(self) -> None:
        """Ask the command to end, for good."""
        if not self.has_ended:
            self._is_cancelled = True
            self._stop(GIVE_UP_S if self._is_on_ray else CANCEL_S)  # there it gives back devices

    @property
    def _is_on_ray(self) -> bool:
        return self.lease.kind == "run" and self._engine.name == "ray"

    def _stop(self, patience_s: float) -> None:
        if self._end_at == math.inf:
            self._command.interrupt()
        self._end_at = min(self._end_at, time.monotonic() + patience_s)

    def lose(self) -> None:
        """End the command now: another worker does the work."""
        self.lost = True
        self.end()

    def leave(self) -> None:
        """End its processes now; on Ray as soon as their devices are given back."""
        if self._is_on_ray and not self.has_ended:
            self._stop(DEVICES_S)
            until = time.monotonic() + DEVICES_S
            while not self.has_ended and time.monotonic() < until:
                time.sleep(0.05)
        self.end()

    def end(self) -> None:
        """End its processes now."""
        for command in (self._command, self._report):
            if command is not None and command.exit_code is None:
                command.end()

    def send(self, door: Door, name: str) -> None:
        """Send new lines of output."""
        for tail in self._tails:
            while lines := tail.waiting():
                tail.arrived(door.send(name, self.lease, tail, lines))

    def _every_tail(self) -> Iterator[Tail]:
        """Yield the output files, also of earlier attempts, which may not have been sent."""
        for number in range(1, self.lease.attempt + 1):
            record = self.folder / f"attempt-{number}"
            if record.is_dir():
                yield Tail(record / _EVENTS, "events", number, plain=False, shown=self._shown.text)
                yield Tail(record / _ERRORS, "errors", number, plain=True, shown=self._shown.text)

    def finish(self, door: Door, name: str) -> bool:
        """Send its files and how it ended; False: its report is being made. What was cancelled is
        so at once, and has its files later."""
        if self._is_cancelled:
            self._report_end(door, name)
        if not self._sent_files(door, name):
            return False
        self._report_end(door, name)
        return True

    def _report_end(self, door: Door, name: str) -> None:
        if not self.is_reported:
            self.is_reported = True
            try:
                door.finish(name, self.lease.id, self._ending())
            except BaseException:
                self.is_reported = False
                raise

    def give_back(self, door: Door, name: str) -> None:
        """End the command now, and put the work back into the queue: it goes on from its folder."""
        self.end()
        self.send(door, name)
        if not self.is_reported:
            ending = Ending(
                attempt=self.lease.attempt, exit_code=EXIT_INTERRUPTED, interrupted=True
            )
            door.finish(name, self.lease.id, ending)

    def fail(self, door: Door, name: str, why: str) -> None:
        """End the command now, and report why."""
        self.end()
        ending = Ending(attempt=self.lease.attempt, exit_code=EXIT_MACHINE, error=f"error: {why}")
        door.finish(name, self.lease.id, ending)

    def _sent_files(self, door: Door, name: str) -> bool:
        if self.lease.kind == "run" and self.run.facts.is_file():
            self._report = self._report or self._reporting()
            if self._report.exit_code is None and time.monotonic() < self._report_until:
                return False
            self.end()
            if self._report.exit_code == 0:
                for file in (REPORT, REPORT_PAGE):
                    report = (self._record / file).read_text(encoding="utf-8", errors="replace")
                    self._send_file(door, name, file, self._shown.text(report).encode())
        bundle = self._bundle()
        if bundle is not None:
            self._send_file(door, name, "bundle.zip", bundle)
        return True

    def _send_file(self, door: Door, name: str, file: str, content: bytes) -> None:
        """Send a file; one that is not taken becomes a problem of the work."""
        try:
            door.keep_file(name, self.lease.id, file, content)
        except Refused as refused:
            self._refused[file] = f"error: {file} did not arrive: {refused}"

    def _ending(self) -> Ending:
        code = self._command.exit_code
        assert code is not None
        errors = (self._record / _ERRORS).read_text(encoding="utf-8", errors="replace")
        problem = errors[errors.rfind("error: ") :] if "error: " in errors else errors[-2000:]
        if not problem.strip():
            killed = f", by signal {code - _SIGNALS}" if code > _SIGNALS else ""
            problem = f"error: its command ended with code {code}{killed}, without a word"
        problem = (self.problem or problem) if code not in ENDS else ""
        problem = "\n".join(filter(None, [problem[-4000:], *self._refused.values()]))
        output = (self._record / _OUTPUT).read_text(encoding="utf-8", errors="replace")
        result = read_json(self._record / _RESULT)
        is_result = isinstance(result, dict)
        return Ending(
            attempt=self.lease.attempt,
            exit_code=code,
            result=json.loads(self._shown.text(json.dumps(result))) if is_result else None,
            text=self._shown.text(output[-_MOST_TEXT:]),
            error=self._shown.text(problem),
        )

    def _bundle(self) -> bytes | None:
        """Return the bundle's files; its links are not followed."""
        plan = self.lease.kind == "plan"
        folder = self._record / "bundle" if plan else self.run.bundle
        if not folder.is_dir():
            return None
        memory = BytesIO()
        with zipfile.ZipFile(memory, "w") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    entry = zipfile.ZipInfo.from_file(path, f"bundle/{path.relative_to(folder)}")
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, self._shown.file(path.read_bytes()))
        return memory.getvalue()

    def _reporting(self) -> Command:
        """Return the command that prints the report, and writes its page."""
        self._report_until = time.monotonic() + REPORT_S
        return Command(
            ["report", str(self.run.path), "--html", str(self._record / REPORT_PAGE)],
            folder=self.folder,
            output=self._record / REPORT,
            errors=self._record / "report-errors.txt",
            environment=self._environment,
        )

    def _arguments(self) -> list[str]:
        record = ["--record", str(self._record)]
        if self.lease.kind == "plan":
            return ["plan", "job.yaml", *record, *self.lease.arguments]
        of_engine = self._engine.flags
        if self.run.exists():
            return ["run", "--resume", str(self.run.path), *record, *of_engine]
        return ["run", "job.yaml", "--out", str(self.run.path), *record, *of_engine]

    def _write_job(self) -> None:
        self.run.write_text(self.folder / "job.yaml", self.lease.job)
        if self.lease.model_config_json is not None:
            self.run.write_text(self.folder / CONFIG, self.lease.model_config_json)
        about = {"id": self.lease.id, "kind": self.lease.kind, "attempt": self.lease.attempt}
        self.run.write_text(self.folder / "work.json", json.dumps(about))
