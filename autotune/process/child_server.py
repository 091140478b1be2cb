"""The server of forked children: the parent starts a child, watches it, ends it, and keeps how it
ended.

Surveys, probes and estimates are such children; launches are in `launch.py`. A child is watched in
five ways: it exits; it outlives its time; it stops making progress while using no processor (a
hang); it takes more of the host's memory than it may; or the caller has seen enough of its progress
(a probe that cannot win). Whatever happens becomes an `Ending`.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from autotune.errors import machine_error
from autotune.process.files import private_opener
from autotune.process.forkserver import CHOICE
from autotune.process.host_memory import HostMeter, HostUse
from autotune.process.limits import Ending, Limits, Watcher
from autotune.process.messages import ChildFolder
from autotune.process.proc import (
    processor_seconds,
    session_processor_seconds,
    session_resident_bytes,
)
from autotune.process.progress import LogTail, ProgressReader, ending_of

PRELOAD = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "autotune.process.preload",
)
_CLOSE_S = 10.0
_POLL_S = 0.05
_KILL_S = 30.0
"""How long a kill may take to show; a driver that hangs can hold a process for ever."""


class ChildServer:
    """A running forkserver, and the only way to start a child. Use as a context manager, which
    waits until the stack is imported; or let the first child begin it, and `close` it in the end.

    Several threads may each run a child at a time; an orphan of one ends with any of them.
    """

    def __init__(
        self,
        log: Path,
        preload: tuple[str, ...] = PRELOAD,
        environment: dict[str, str] | None = None,
        ready_s: float = 300.0,
    ):
        """Describe a server that imports `preload`, for at most `ready_s` seconds."""
        self._log = log
        self._ready_s = ready_s
        self._preload = preload
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._talking = threading.Lock()
        self._endings: dict[int, dict[str, Any]] = {}
        self._stop_reasons: dict[Path, str] = {}
        self.fresh: str | None = None
        """Why every child is a fresh process, slower by the imports; None: children are forked."""
        self._importing_since: float | None = None
        self.import_s = 0.0
        """Seconds that it took to start: to import the stack."""

    def __enter__(self) -> Self:
        self.begin()
        self._await_imports()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Start to import; the first child waits until that is done."""
        self._buffer = b""
        self._endings.clear()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab", opener=private_opener) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autotune.process.forkserver", *self._preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **child_environment(), **self._environment},
                start_new_session=True,
            )
        self._importing_since = time.monotonic()

    def _await_imports(self) -> None:
        """Wait until everything is imported.

        Raises:
            MachineError: it cannot be, or not in time.
        """
        if self._importing_since is None:
            return
        deadline = self._importing_since + self._ready_s
        ready = self._next_event(deadline - time.monotonic())
        if ready is None:
            is_late = time.monotonic() >= deadline
            self.close()
            if is_late:
                raise machine_error(
                    f"the training stack was still being imported after {self._ready_s:g} s",
                    hint="this machine is busy, or its disk is slow: try again",
                )
            raise machine_error(
                f"the training stack cannot be imported{ending_of(self._log)}",
                hint="`autotune doctor` shows whether a package is missing or broken",
            )
        if ready["event"] == "cuda":
            self.close()
            self._environment |= {CHOICE: f"fresh: importing {ready['starter']} starts CUDA"}
            self.begin()
            self._await_imports()
        else:
            self.fresh, self.import_s = ready["fresh"], time.monotonic() - self._importing_since
            self._importing_since = None

    def close(self) -> None:
        """End the server; it kills its children when its input closes."""
        process, self._process = self._process, None
        wait_s = _CLOSE_S if self._importing_since is None else 0.0
        self._importing_since = None  # while it imports it has no children, nor looks at its input
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def run(
        self,
        folder: ChildFolder,
        worker: str,
        limits: Limits,
        watch: Watcher | None = None,
        host: HostMeter | None = None,
        cancelled: threading.Event | None = None,
    ) -> Ending:
        """Run `worker` on `folder` in a child of its own until it ends in one way or another.

        Args:
            host: watches what it takes of the host's memory, and may end it.
            cancelled: no child is started if it is set by the time that the server is free.
        """
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.reply.unlink(missing_ok=True)
        folder.progress.unlink(missing_ok=True)
        for log in (folder.stdout, folder.stderr):  # the child does not follow links
            if log.is_symlink():
                log.unlink()
        try:
            with self._talking:
                if cancelled is not None and cancelled.is_set():
                    return Ending(why="lost", seconds=0.0)
                if reason := self.stop_reason(folder):
                    return Ending(why="stopped", stop_reason=reason, seconds=0.0)
                pid = self._start(folder, worker)
            if pid is None:
                return Ending(why="lost", seconds=0.0)
            return ChildWatch(self, folder, pid, limits, watch, host).until_end()
        except BaseException:
            self.close()  # and its children with it: what they still send is not for the next
            raise

    def stop(self, folder: ChildFolder, reason: str) -> None:
        """End the child of a folder that another thread watches, or is about to."""
        self._stop_reasons[folder.path] = reason

    def clear_stop(self, folder: ChildFolder) -> None:
        """Drop why the child of a folder was to end: it has, and the next one is not."""
        self._stop_reasons.pop(folder.path, None)

    def stop_reason(self, folder: ChildFolder) -> str | None:
        """Return why the child of a folder is to end; None while it is not."""
        return self._stop_reasons.get(folder.path)

    def _start(self, folder: ChildFolder, worker: str) -> int | None:
        """Return the process of a new child; None where the server does not answer, which ends
        it."""
        importing = self._importing_since is not None
        if self._process is None or (not importing and self._process.poll() is not None):
            self.close()
            self.begin()
        self._await_imports()
        self._send({"start": str(folder.path), "worker": worker})
        while event := self._next_event(timeout_s=30.0):
            if event["event"] == "started":
                return int(event["pid"])
            self._endings[event["pid"]] = event
        self.close()
        return None

    def await_ending(self, pid: int, timeout_s: float) -> dict[str, Any] | None:
        """Return the server's event for the end of a child; None after `timeout_s` or when the
        server is gone."""
        with self._talking:
            if pid not in self._endings and (event := self._next_event(timeout_s)):
                self._endings[event["pid"]] = event
            return self._endings.pop(pid, None)

    def kill(self, pid: int) -> None:
        """Kill a child and its whole group."""
        self._send({"kill": pid})

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None:  # another thread has closed it, and its children have ended with it
            return
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the server's next event; None after `timeout_s` or when the server is gone."""
        process = self._process
        if process is None:  # another thread has closed it
            return None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while b"\n" not in self._buffer:
                    remaining_s = deadline - time.monotonic()
                    if remaining_s <= 0 or not selector.select(remaining_s):
                        return None
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        return None
                    self._buffer += chunk
        except ValueError:  # another thread closes it
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    @property
    def is_alive(self) -> bool:
        """True if the server still runs."""
        return self._process is not None and self._process.poll() is None


def child_environment() -> dict[str, str]:
    """Return the variables that every child sees besides the user's own environment."""
    return {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # The folder that the user stands in may hold a `datasets.py`.
        "PYTHONSAFEPATH": "1",
        # Torch asks NVML whether there is a GPU, and does not start CUDA to find out.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # A checkpoint that is a pickle is read as tensors alone: nothing in it is run.
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    }


class ChildWatch:
    """One child of a server under watch.

    Args:
        watch: sees the child's progress, and may end it.
        host: watches what it takes of the host's memory, and may end it.
    """

    def __init__(
        self,
        server: ChildServer,
        folder: ChildFolder,
        pid: int,
        limits: Limits,
        watch: Watcher | None,
        host: HostMeter | None,
    ):
        self._server, self._folder, self._pid = server, folder, pid
        self._limits, self._watch, self._host = limits, watch, host
        self._reader = ProgressReader(folder.progress)
        self._logs = (LogTail(folder.stdout), LogTail(folder.stderr))
        self._events: list[dict[str, Any]] = []
        self._began = self._active_at = time.monotonic()
        self._processor_s = 0.0
        self._session_s: float | None = None
        self._progress_at = (self._began, 0.0)
        self._kill_by = float("inf")
        self._rss: int | None = None
        self._stop: tuple[str, str | None] | None = None

    def until_end(self) -> Ending:
        """Watch until it has ended; return how."""
        while True:
            event = self._server.await_ending(self._pid, _POLL_S)
            if event is not None:
                self._read_progress(deciding=False)
                break
            if time.monotonic() > self._kill_by:
                self._server.close()
            if not self._server.is_alive:
                # The child dies with the server, but not what the child has started.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
                reason = "it did not end when it should" if self._stop else None
                seconds = time.monotonic() - self._began
                return Ending(why="lost", seconds=seconds, stop_reason=reason)
            if self._stop is None:
                self._look()
            for log in self._logs:
                log.cut()
        for log in self._logs:
            log.finish()
        why, reason = self._stop or ("exited", None)
        return Ending(
            why=why,
            stop_reason=reason,
            exit_code=event["exit_code"],
            signal=event["signal"],
            max_rss_bytes=event["max_rss_bytes"],
            strays=event["strays"],
            seconds=time.monotonic() - self._began,
            rss_at_stop_bytes=self._rss,
            events=tuple(self._events),
            host=HostUse() if self._host is None else self._host.use,
        )

    def _look(self) -> None:
        now = time.monotonic()
        reason = self._read_progress(deciding=True) or self._server.stop_reason(self._folder)
        processor = processor_seconds(self._pid)
        if processor is not None and processor > self._processor_s + 0.01 * self._limits.stall_s:
            self._processor_s, self._active_at, self._session_s = processor, now, None
        elif now - self._active_at > 0.5 * self._limits.stall_s:
            self._count_session(now)
        if self._host is not None and self._host.over_limit(self._pid):
            self._end("host", None)
        elif reason is not None:
            self._end("stopped", reason)
        elif now - self._began > self._limits.wall_s:
            self._end("wall", None)
        elif now - self._active_at > self._limits.stall_s or self._computes_too_long(now):
            self._end("stall", None)

    def _computes_too_long(self, now: float) -> bool:
        """True if a child that has reported progress computes too long without any."""
        progress_at, processor_s = self._progress_at
        if not self._events or now - progress_at <= self._limits.busy_s:
            return False
        if now - progress_at > self._limits.silent_s:
            return True
        return session_processor_seconds(self._pid) - processor_s > self._limits.busy_s

    def _count_session(self, now: float) -> None:
        """Count as activity the work of what a silent child waits for, such as a compiler."""
        seconds = session_processor_seconds(self._pid)
        if self._session_s is None:
            self._session_s = seconds
        elif seconds > self._session_s + 0.01 * self._limits.stall_s:
            self._active_at, self._session_s = now, None

    def _read_progress(self, *, deciding: bool) -> str | None:
        reason = None
        for event in self._reader.new_events():
            self._active_at = time.monotonic()
            self._events.append(event)
            if self._limits.busy_s < float("inf"):
                self._progress_at = (self._active_at, session_processor_seconds(self._pid))
            if self._host is not None:
                self._host.note(event)
            if deciding and reason is None and self._watch is not None:
                reason = self._watch(event)
        return reason

    def _end(self, why: str, reason: str | None) -> None:
        self._rss = session_resident_bytes(self._pid)
        self._stop = (why, reason)
        self._kill_by = time.monotonic() + _KILL_S
        self._server.kill(self._pid)
