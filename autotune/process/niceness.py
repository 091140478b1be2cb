"""How a process stands back for others: by its priority and its memory.

Where the kernel groups processes by session (`sched_autogroup_enabled`, which distributions switch
on), a priority counts only within a session, and each session gets the same share of the cores: a
session has a priority of its own, `/proc/PID/autogroup`. In a control group that limits the cores
that file is of no effect, and the priority counts.
"""

import contextlib
import ctypes
import os
from pathlib import Path

from autotune.process.descendants import tree

_M_ARENA_MAX = -8
"""An option of mallopt(3), in glibc."""


def stand_back(pid: int, niceness: int) -> None:
    """Let a process stand back, which leads a session of its own, with all that it starts and has
    started."""
    for one in tree(pid):
        with contextlib.suppress(OSError):  # gone by now
            for thread in Path(f"/proc/{one}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    # Some kernels have none; who is not privileged may change it once in 100 ms.
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
