"""Figures of processes, read from /proc. Seconds and bytes.

A child leads a session of its own, so what it started is found by its session id.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_template_pids: list[int] = []


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name (the first is the state); None: it is
    gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did: that tells it from a later one
    of the same number; None once it is gone, or has only to be reaped."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None and fields[0] != "Z" else None


def processor_seconds(pid: int) -> float | None:
    """Return the processor time that `pid` has used; None once it is gone."""
    fields = _stat(pid)
    return _ticks(fields[11:13]) if fields is not None else None


def _ticks(fields: list[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of `pid` now; None once it is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _session(leader: int) -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields is not None and int(fields[3]) == leader:
                yield int(entry.name), fields


def session_members(leader: int) -> list[int]:
    """Return the processes of a session that run the same program as its leader: ranks and what
    loads their data, but no compiler that one of them has started."""
    program = _program(leader)
    return [pid for pid, _ in _session(leader) if program is not None and _program(pid) == program]


def _program(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:  # gone, or another user's
        return None


def session_processor_seconds(leader: int) -> float:
    """Return the processor time of a whole session, and of the children its processes have
    reaped."""
    return sum(_ticks(fields[11:15]) for _, fields in _session(leader))


def session_resident_bytes(leader: int) -> int | None:
    """Return the resident memory of the largest process of a session; None once all are gone.

    Of a probe of several ranks that is the fullest rank: its leader only waits for them.
    """
    sizes = (resident_bytes(pid) for pid, _ in _session(leader))
    return max((size for size in sizes if size is not None), default=None)


def session_memory(leader: int) -> tuple[int, int]:
    """Return the highest resident size that a living process of a session has had, and what the
    fullest holds now of memory that is no file's (those pages the kernel can take back)."""
    peak = now = 0
    for pid, _ in _session(leader):
        with contextlib.suppress(OSError, KeyError):  # gone, or waiting to be reaped
            peak = max(peak, process_status("VmHWM", pid))
            now = max(now, process_status("RssAnon", pid))
    return peak, now


def processor_wait_seconds() -> float | None:
    """Return how long the threads of this process have waited for a core; None: not counted here.

    It hardly grows on an idle machine.
    """
    waited = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                waited += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return waited / 1e9


def process_status(field: str, pid: int | str = "self") -> int:
    """Return a size of a process from /proc/PID/status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def unmapped_bytes() -> int:
    """Return the bytes of libraries that a fresh process maps, and this one has not mapped yet."""
    return process_status("RssFile", template_pid()) - process_status("RssFile")


def name_template(pid: int) -> None:
    """Make process `pid` the template, here and in what is forked from here: the process that has
    the libraries in memory when a child begins, against which the child's own pages are held."""
    _template_pids[:] = [pid]


def template_pid() -> int:
    """Return the template; this process's parent, unless another was named."""
    return _template_pids[0] if _template_pids else os.getppid()
