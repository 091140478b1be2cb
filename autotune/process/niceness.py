"""How far a process stands back for others.

Where the kernel groups processes by session (`sched_autogroup_enabled`, which distributions switch
on), a priority counts only within a session, and each session gets the same share of the cores: a
session has a priority of its own, `/proc/PID/autogroup`. In a control group that limits the cores
that file is of no effect, and the priority counts.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_NICENESS = re.compile(r"nice (-?\d+)")


def stand_back(pid: int, niceness: int) -> None:
    """Let a process stand back, which leads a session of its own, with all that it starts."""
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    _set_session_niceness(pid, niceness)


def keep_to_last_core(beside: int = 2) -> None:
    """Let this thread, and those that it starts, compute on the last core alone, where there are
    more than `beside`: the others are left to whom it stands back for."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > beside:
        os.sched_setaffinity(0, cores[-1:])


@contextlib.contextmanager
def session_standing_back(niceness: int) -> Iterator[None]:
    """Within this block our whole session stands back: a terminal has it back at the end."""
    before = _session_niceness(os.getpid())
    _set_session_niceness(os.getpid(), niceness)
    try:
        yield
    finally:
        if before is not None:
            _set_session_niceness(os.getpid(), before)


def _session_niceness(pid: int) -> int | None:
    """None: the kernel does not group by session."""
    with contextlib.suppress(OSError):
        found = _NICENESS.search(Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None


def _set_session_niceness(pid: int, niceness: int) -> None:
    """Nothing where the kernel has no such groups, or does not let us (once in 100 ms)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")
