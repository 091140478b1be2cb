"""Run a command as the user would, watch it from outside, and end it with everything it started.

What is measured is what an outsider can see: when each line came out, the highest memory of any
of its processes (resident size from the kernel's accounting; on a GPU what NVML says, sampled every
0.2 s), and how it ended.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.facts import devices

_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """How a launched command went. `lines` are (seconds since the start, text)."""

    exit_code: int
    timed_out: bool
    seconds: float
    peak_resident_bytes: int
    peak_gpu_bytes: int | None
    lines: tuple[tuple[float, str], ...]


def launch(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    gpu_index: int | None,
) -> LaunchReport:
    """Run `command` to its end, or kill its group after `timeout_s`; its output goes to `log`."""
    began = time.monotonic()
    used_before = devices.gpu_used_bytes(gpu_index) if gpu_index is not None else None
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[tuple[float, str]] = []
    peak_gpu: int | None = None
    timed_out = False
    buffer = b""
    try:
        with log.open("wb") as file, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if selector.select(_POLL_S):
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    file.write(chunk)
                    *whole, buffer = (buffer + chunk).split(b"\n")
                    now = time.monotonic() - began
                    lines += [(now, line.decode(errors="replace")) for line in whole]
                if gpu_index is not None and used_before is not None:
                    used = devices.gpu_used_bytes(gpu_index)
                    if used is not None:
                        peak_gpu = max(peak_gpu or 0, used - used_before)
                if time.monotonic() - began > timeout_s:
                    timed_out = True
                    break
    finally:
        _kill_group(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    return LaunchReport(
        exit_code=process.returncode,
        timed_out=timed_out,
        seconds=time.monotonic() - began,
        peak_resident_bytes=usage.ru_maxrss * 1024,
        peak_gpu_bytes=peak_gpu,
        lines=tuple(lines),
    )


def _kill_group(pid: int) -> None:
    """End the group; its leader first gets a moment, so that its exit code is its own."""
    deadline = time.monotonic() + 5.0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
