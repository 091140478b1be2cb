"""Run a command as the user would, watch it from outside, and end it with everything it started.

What is measured is what an outsider can see: when each line came out, the highest memory of any
of its processes (resident size from the kernel's accounting; on a GPU what NVML says, sampled every
0.2 s), how long its threads waited for a core, and how it ended. It ends when its first process
does: what that leaves in its process group and beyond it is killed, and output is not waited for. A
guard (`guard.py`) ends it all if we are killed.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from autotune.facts import devices
from autotune.facts.host import memory_kills
from autotune.process.files import private_opener
from autotune.process.limits import LaunchReport
from autotune.process.proc import process_status, session_memory
from autotune.process.processor_load import ProcessorWaits
from autotune.process.progress import LogTail

GUARD = "autotune.process.guard"
_POLL_S = 0.2
_TERM_S = 5.0
_DRAIN_S = 1.0
_LINES, _MOST_LINE = 100_000, 4096
"""The last lines that are kept in memory, and the first bytes of each."""


def launch(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    gpus: Sequence[int],
    on_line: Callable[[float, str], None] | None = None,
    stop: Callable[[], str | None] | None = None,
    folder: Path | None = None,
) -> LaunchReport:
    """Run `command` to its end, or kill its group after `timeout_s`; its output goes to `log`.

    Args:
        on_line: called for each line as it comes, with the seconds since the start.
        stop: called several times a second; a text that it returns ends the command, too.
        folder: where it runs; None: here.
    """
    meter, waits = _Meter(gpus), ProcessorWaits()
    began, kills = time.monotonic(), memory_kills()
    with open(log, "ab", opener=private_opener) as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", GUARD, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
            cwd=folder,
        )
        assert process.stdin is not None and process.stdout is not None
        output = _Output(process.stdout.fileno(), file, began, on_line)
        timed_out, stop_reason = False, None
        try:
            while not _has_ended(process.pid) and not timed_out and stop_reason is None:
                output.read(_POLL_S)
                meter.sample(process.pid, time.monotonic() - began)
                waits.look(process.pid, time.monotonic() - began)
                timed_out = time.monotonic() - began > timeout_s
                stop_reason = stop() if stop is not None else None
        finally:
            _end_group(process)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.drain()
            process.stdout.close()
            process.stdin.close()
    return LaunchReport(
        exit_code=process.returncode,
        timed_out=timed_out,
        stop_reason=stop_reason,
        seconds=time.monotonic() - began,
        peak_resident_bytes=meter.peak_resident(usage.ru_maxrss * 1024),
        peak_gpu_bytes=meter.peak_gpu,
        lines=tuple(output.lines),
        memory_kills=memory_kills() - kills,
        processor_waits=tuple(waits.waits),
        gpu_memory=tuple(meter.gpu),
        host_memory=tuple(meter.host),
    )


class _Output:
    """The output of a command, line by line as it comes."""

    def __init__(
        self,
        source: int,
        log: BinaryIO,
        began: float,
        on_line: Callable[[float, str], None] | None,
    ):
        self.lines: deque[tuple[float, str]] = deque(maxlen=_LINES)
        self._source, self._log, self._began, self._on_line = source, log, began, on_line
        self._buffer, self._tail = b"", LogTail(Path(log.name))
        self._open = True
        log.truncate(0)

    def read(self, timeout_s: float) -> bool:
        """Take what comes within a time; True if anything came."""
        if not self._open:
            time.sleep(timeout_s)
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._source, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return False
        chunk = os.read(self._source, 65536)
        self._open = bool(chunk)
        self._log.write(chunk)
        self._tail.cut()
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        self._add(lines)
        self._buffer = self._buffer[:_MOST_LINE]
        return self._open

    def drain(self) -> None:
        """Take what is left when the command has ended; a last line may lack its newline."""
        deadline = time.monotonic() + _DRAIN_S
        while self._open and time.monotonic() < deadline and self.read(0.0):
            pass
        if self._buffer:
            self._add([self._buffer])
        self._log.flush()
        self._tail.finish()

    def _add(self, lines: list[bytes]) -> None:
        now = time.monotonic() - self._began
        for line in lines:
            self.lines.append((now, line[:_MOST_LINE].decode(errors="replace")))
            if self._on_line is not None:
                self._on_line(*self.lines[-1])


class _Meter:
    """The highest memory of a session's processes.

    The kernel's figure for an ended process is exact, but begins with the resident size of the
    process that started it: us. Where it is no higher than ours, the sampled one is taken.
    """

    def __init__(self, gpus: Sequence[int]):
        self.peak_gpu: int | None = None
        self.gpu: list[tuple[float, int]] = []
        """(seconds since the start, what the fullest GPU held then)."""
        self.host: list[tuple[float, int]] = []
        """The same of the fullest process."""
        self._gpus = {gpu: devices.gpu_used_bytes(gpu) for gpu in gpus}
        """The bytes that each held before."""
        self._sampled_peak = 0
        self._next = 0.0

    def sample(self, leader: int, now_s: float) -> None:
        """Look, unless the last look was a moment ago."""
        if now_s < self._next:
            return
        self._next = now_s + _POLL_S
        peak, now = session_memory(leader)
        self._sampled_peak = max(self._sampled_peak, peak)
        if now:
            self.host.append((now_s, now))
        held = []
        for gpu, baseline in self._gpus.items():
            used = devices.gpu_used_bytes(gpu)
            if used is not None and baseline is not None:
                held.append(used - baseline)
        if held:
            self.gpu.append((now_s, max(held)))
            self.peak_gpu = max(self.peak_gpu or 0, *held)

    def peak_resident(self, kernel_peak: int) -> int:
        """Return the peak of a command for which the kernel accounted so much."""
        own_peak = 1.1 * process_status("VmHWM")
        return (
            kernel_peak if kernel_peak > own_peak or not self._sampled_peak else self._sampled_peak
        )


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the guard and all it has under it. A command that still runs is asked first: it may know
    how to end what it started. Then the guard ends the rest, also what left the group."""
    if not _has_ended(process.pid):
        _signal_group(process.pid, signal.SIGTERM)
    if not _ends_within(process.pid, _TERM_S):
        assert process.stdin is not None
        process.stdin.close()
        _ends_within(process.pid, _TERM_S)
    _signal_group(process.pid, signal.SIGKILL)


def _ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return _has_ended(pid)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
