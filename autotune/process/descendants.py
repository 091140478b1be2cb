"""What a process has started, and its end: two requests to Linux, and a loop that kills. Plain.

A process that calls `adopt_orphans` becomes the parent of every descendant whose own parent dies,
also of those that went into sessions of their own: so nothing it started can get away from it
(prctl(2): PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0
"""How long a kill may take to show; a driver that hangs can hold a process for ever."""


def die_with_parent() -> None:
    """Let the death of the parent kill this process from now on. Whether it still lived is asked
    afterwards, by `os.getppid`."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make descendants whose parent dies children of this process from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def own_children() -> set[int]:
    """Return the children of this process, those that have ended but are not reaped among them."""
    tasks = Path("/proc/self/task")
    texts = (task / "children" for task in tasks.iterdir())
    return {int(pid) for text in texts for pid in text.read_text(encoding="ascii").split()}


def end_children(exempt_pids: Collection[int] = ()) -> int:
    """Kill and reap this process's children, and what becomes its child by that, but for
    `exempt_pids`; give up after 5 s. Return how many were still running."""
    running = 0
    deadline = time.monotonic() + _END_S
    while children := own_children().difference(exempt_pids):
        for pid in children:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                running += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if time.monotonic() > deadline:
            break
    return running


def tree(pid: int) -> list[int]:
    """Return a process and all that it has started, as far as they live."""
    pids, left = [], [pid]
    while left:
        parent = left.pop()
        pids.append(parent)
        with contextlib.suppress(OSError):  # gone by now
            for task in Path(f"/proc/{parent}/task").iterdir():
                text = (task / "children").read_text(encoding="ascii")
                left += map(int, text.split())
    return pids
