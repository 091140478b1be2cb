"""Which other processes of the machine compute now: what a busy machine is busy with."""

import os
import time
from pathlib import Path

from autotune.process.descendants import tree
from autotune.process.proc import processor_seconds

LOOK_S = 0.5
COMPUTES = 0.2
"""Of a core; less is not worth a name."""
MOST = 3


def busiest_others() -> list[str]:
    """Return the processes that take most of the cores, without this one and what it has
    started."""
    ours = set(tree(os.getpid()))
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    before = {pid: processor_seconds(pid) for pid in pids if pid not in ours}
    time.sleep(LOOK_S)
    shares = {
        pid: (now - then) / LOOK_S
        for pid, then in before.items()
        if then is not None and (now := processor_seconds(pid)) is not None
    }
    most = sorted(shares, key=lambda pid: -shares[pid])[:MOST]
    return [f"pid {pid}{_name(pid)}" for pid in most if shares[pid] >= COMPUTES]


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # it has ended
        return ""
    return f" ({name})" if name.isprintable() else ""
