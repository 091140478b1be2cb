"""A child under watch until it ends, one way or another (`server.py`)."""

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from autotune.process.host_memory import HostMeter, HostUse
from autotune.process.limits import Ending, Limits, Watcher, lost_ending
from autotune.process.logs import LogTail
from autotune.process.messages import ChildFolder
from autotune.process.proc import (
    processor_seconds,
    session_processor_seconds,
    session_resident_bytes,
)
from autotune.process.progress import ProgressReader

if TYPE_CHECKING:
    from autotune.process.server import ChildServer

_POLL_S = 0.05
_KILL_S = 30.0
"""How long a kill may take to show; a driver that hangs can hold a process for ever."""


class ChildWatch:
    """One child of a server under watch.

    Args:
        watch: hears of the child's progress, and may have seen enough.
        host: watches what it takes of the host's memory, and may end it.
    """

    def __init__(
        self,
        server: "ChildServer",
        folder: ChildFolder,
        pid: int,
        limits: Limits,
        watch: Watcher | None,
        host: HostMeter | None,
    ):
        self._server, self._pid = server, pid
        self._limits, self._watch, self._host = limits, watch, host
        self._reader = ProgressReader(folder.progress)
        self._logs = (LogTail(folder.stdout), LogTail(folder.stderr))
        self._events: list[dict[str, Any]] = []
        self._began = self._heard_at = time.monotonic()
        self._processor_s = 0.0
        self._session_s: float | None = None
        self._told_at = (self._began, 0.0)
        self._kill_by = float("inf")
        self._rss: int | None = None
        self._stop: tuple[str, str | None] | None = None

    def until_end(self) -> Ending:
        """Watch until it has ended, and say how."""
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
                deaf = "it did not end when it was to" if self._stop else None
                return lost_ending(time.monotonic() - self._began, deaf)
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
        reason = self._read_progress(deciding=True)
        processor = processor_seconds(self._pid)
        if processor is not None and processor > self._processor_s + 0.01 * self._limits.stall_s:
            self._processor_s, self._heard_at, self._session_s = processor, now, None
        elif now - self._heard_at > 0.5 * self._limits.stall_s:
            self._hear_session(now)
        if self._host is not None and self._host.over_limit(self._pid):
            self._end("host", None)
        elif reason is not None:
            self._end("stopped", reason)
        elif now - self._began > self._limits.wall_s:
            self._end("wall", None)
        elif now - self._heard_at > self._limits.stall_s or self._computes_without_end(now):
            self._end("stall", None)

    def _computes_without_end(self, now: float) -> bool:
        """True if a child that has begun to tell how far it is computes too long without a word."""
        told_at, processor_s = self._told_at
        if not self._events or now - told_at <= self._limits.busy_s:
            return False
        return session_processor_seconds(self._pid) - processor_s > self._limits.busy_s

    def _hear_session(self, now: float) -> None:
        """Count the work of what a silent child waits for: a compiler, say."""
        seconds = session_processor_seconds(self._pid)
        if self._session_s is None:
            self._session_s = seconds
        elif seconds > self._session_s + 0.01 * self._limits.stall_s:
            self._heard_at, self._session_s = now, None

    def _read_progress(self, *, deciding: bool) -> str | None:
        reason = None
        for event in self._reader.new_events():
            self._heard_at = time.monotonic()
            self._events.append(event)
            if self._limits.busy_s < float("inf"):
                self._told_at = (self._heard_at, session_processor_seconds(self._pid))
            if self._host is not None:
                self._host.hear(event)
            if deciding and reason is None and self._watch is not None:
                reason = self._watch(event)
        return reason

    def _end(self, why: str, reason: str | None) -> None:
        self._rss = session_resident_bytes(self._pid)
        self._stop = (why, reason)
        self._kill_by = time.monotonic() + _KILL_S
        self._server.kill(self._pid)
