"""How a process stands back for others: by its priority, its cores and its memory.

Where the kernel groups processes by session (`sched_autogroup_enabled`, which distributions switch
on), a priority counts only within a session, and each session gets the same share of the cores: a
session has a priority of its own, `/proc/PID/autogroup`. In a control group that limits the cores
that file is of no effect, and the priority counts.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

_NICENESS = re.compile(r"nice (-?\d+)")
_M_ARENA_MAX = -8
"""An option of mallopt(3), in glibc."""


def stand_back(pid: int, niceness: int) -> None:
    """Let a process stand back, which leads a session of its own, with all that it starts."""
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    _set_session_niceness(pid, niceness)


def keep_to_last_core(beside: int = 2) -> None:
    """Let this thread, and those that it starts, compute on the last core alone, where there are
    more than `beside`: the others are left to the rest."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > beside:
        os.sched_setaffinity(0, cores[-1:])


@contextlib.contextmanager
def session_standing_back(niceness: int) -> Iterator[None]:
    """Let our whole session stand back within this block: a terminal gets it back at the end."""
    before = _session_niceness(os.getpid())
    _set_session_niceness(os.getpid(), niceness)
    try:
        yield
    finally:
        if before is not None:
            _set_session_niceness(os.getpid(), before)


def _session_niceness(pid: int) -> int | None:
    """Return a session's priority; None: the kernel does not group by session."""
    with contextlib.suppress(OSError):
        found = _NICENESS.search(Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None


def _set_session_niceness(pid: int, niceness: int) -> None:
    """Set a session's priority, unless the kernel has none or refuses (it allows one change in 100
    ms)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


def share_one_arena() -> None:
    """Let all threads that start from here on allocate from one arena.

    glibc gives threads up to eight arenas a core, each of which keeps what is freed in it: the
    memory of a service with some 40 threads wandered between 160 and 220 MB. Other C libraries are
    left as they are.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
