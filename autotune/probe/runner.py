"""The parent's side: start a child, watch it, end it, and say how it ended.

Every process this project starts is started here. A child is watched in four ways: it exits; it
outlives its time; it stops making progress while using no processor (a hang); or the caller has
seen enough of its progress (a probe that cannot win). Whatever happens becomes an `Ending`.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autotune.errors import machine_error
from autotune.probe.protocol import ProbeFolder, ProgressReader

PRELOAD = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "autotune.probe.preload",
)
_POLL_S = 0.05
_LOG_LIMIT_BYTES = 8 * 2**20

Watcher = Callable[[dict[str, Any]], str | None]
"""Sees each progress event; a text that it returns ends the child, and is the reason."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a child may take, in seconds."""

    wall_s: float = 300.0
    stall_s: float = 30.0
    """Silence without using the processor after which a child counts as hung."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a child ended: `why` is exited, wall, stall, stopped or lost."""

    why: str
    exit_code: int | None
    signal: int | None
    max_rss_bytes: int | None
    strays: int
    seconds: float
    rss_at_stop_bytes: int | None = None
    stop_reason: str | None = None
    events: tuple[dict[str, Any], ...] = ()


class ProbeServer:
    """A running forkserver, and the only way to start a child. Use as a context manager."""

    def __init__(
        self,
        log: Path,
        preload: tuple[str, ...] = PRELOAD,
        environment: dict[str, str] | None = None,
    ):
        self._log = log
        self._preload = preload
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autotune.probe.forkserver", *self._preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **child_environment(), **self._environment},
                start_new_session=True,
            )
        if self._next_event(timeout_s=300.0) is None:
            self.close()
            raise machine_error(
                "the training stack cannot be imported",
                where=str(self._log),
                hint="read that log; then check the installation with `autotune env`",
            )

    def close(self) -> None:
        """End the server; it kills its children when its input closes."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def run(
        self, folder: ProbeFolder, worker: str, limits: Limits, watch: Watcher | None = None
    ) -> Ending:
        """Run `worker` on `folder` in a child of its own until it ends, one way or another."""
        folder.path.mkdir(parents=True, exist_ok=True)
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        self._send({"start": str(folder.path), "worker": worker})
        started = self._next_event(timeout_s=30.0)
        if started is None:
            return _lost(0.0)
        return _Watch(self, folder, int(started["pid"]), limits, watch).until_end()

    def kill(self, pid: int) -> None:
        """Kill a child and its whole group."""
        self._send({"kill": pid})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait()

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The server's next event; None after `timeout_s` or when the server is gone."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process is not None and self._process.poll() is None


class _Watch:
    """One child under watch."""

    def __init__(
        self,
        server: ProbeServer,
        folder: ProbeFolder,
        pid: int,
        limits: Limits,
        watch: Watcher | None,
    ):
        self._server, self._folder, self._pid = server, folder, pid
        self._limits, self._watch = limits, watch
        self._reader = ProgressReader(folder.progress)
        self._events: list[dict[str, Any]] = []
        self._began = self._heard = time.monotonic()
        self._processor_s = 0.0
        self._rss: int | None = None
        self._stop: tuple[str, str | None] | None = None

    def until_end(self) -> Ending:
        while True:
            event = self._server._next_event(_POLL_S)
            if event is not None and event["event"] == "exited" and event["pid"] == self._pid:
                self._read_progress(deciding=False)
                break
            if not self._server.alive:
                return _lost(time.monotonic() - self._began)
            if self._stop is None:
                self._look()
            _cut_log(self._folder.stdout, _LOG_LIMIT_BYTES)
            _cut_log(self._folder.stderr, _LOG_LIMIT_BYTES)
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
        )

    def _look(self) -> None:
        now = time.monotonic()
        reason = self._read_progress(deciding=True)
        processor = processor_seconds(self._pid)
        if processor is not None and processor > self._processor_s + 0.01 * self._limits.stall_s:
            self._processor_s, self._heard = processor, now
        if reason is not None:
            self._end("stopped", reason)
        elif now - self._began > self._limits.wall_s:
            self._end("wall", None)
        elif now - self._heard > self._limits.stall_s:
            self._end("stall", None)

    def _read_progress(self, *, deciding: bool) -> str | None:
        reason = None
        for event in self._reader.new_events():
            self._heard = time.monotonic()
            self._events.append(event)
            if deciding and reason is None and self._watch is not None:
                reason = self._watch(event)
        return reason

    def _end(self, why: str, reason: str | None) -> None:
        self._rss = resident_bytes(self._pid)
        self._stop = (why, reason)
        self._server.kill(self._pid)


def _lost(seconds: float) -> Ending:
    """The server itself is gone, and its children with it."""
    return Ending(
        why="lost", exit_code=None, signal=None, max_rss_bytes=None, strays=0, seconds=seconds
    )


def _cut_log(path: Path, limit: int) -> None:
    """Keep a log from filling the disk: past `limit` it starts over (the child appends)."""
    try:
        if path.stat().st_size > limit:
            os.truncate(path, 0)
    except OSError:
        return


def processor_seconds(pid: int) -> float | None:
    """Processor time that `pid` has used; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Resident memory of `pid` now; None once it is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def child_environment() -> dict[str, str]:
    """What every child sees besides the user's own environment."""
    return {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def signal_name(number: int) -> str:
    """`SIGKILL` of 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
