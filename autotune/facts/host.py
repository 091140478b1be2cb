"""The machine that the devices are in: its memory for all processes together, in bytes, and what
the control groups of this process allow of its memory and processor time (cgroups(7)).

Each group above it holds for it, too: containers, Slurm and systemd put groups into groups. Both
versions are read, wherever they are mounted. In a container the path of a group may begin above
what is mounted there: then it counts from what is.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KEPT_FREE = 0.05
"""Share of what is free that probes leave alone: at the last byte it is the kernel that ends
processes, and not always ours. Chosen, not measured."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Memory of the machine, and the part that is free for new processes."""

    total_bytes: int
    free_bytes: int


def host() -> HostFacts:
    """Return this machine as it is now, within the control groups that this process is in."""
    memory = dict(_meminfo())
    total, free = memory["MemTotal"], memory["MemAvailable"]
    for limit, used in memory_limits():
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return HostFacts(total_bytes=total, free_bytes=free)


def host_limit(host_memory: int | None, device_kind: str, host: HostFacts | None) -> int | None:
    """Return what all processes of a job may take of the host together; None: there is no such
    limit.

    On a CPU the device is the host, and each process has a limit of its own: there only what the
    job says counts. Of a machine that is not here (`host` is None) nothing else is known.

    Args:
        host_memory: the limit that the job itself has.
    """
    if host_memory is not None or host is None or device_kind == "cpu":
        return host_memory
    return int(host.free_bytes * (1 - KEPT_FREE))


def _meminfo() -> Iterator[tuple[str, int]]:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, amount = line.partition(":")
        yield name, int(amount.split()[0]) * 1024


PROCESS = Path("/proc/self")
_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Limit and use in the second version (what is beyond the second is slowed down, not refused), and
in the first."""
_KILL_FILES = ("memory.events", "memory.oom_control")


def memory_limits(process: Path = PROCESS) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) of each group that limits memory. Bytes."""
    for group in _groups("memory", process):
        for limit_file, used_file in _MEMORY_FILES:
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int(_text(group / name)) for name in (limit_file, used_file))
                yield limit, max(used - _cached_bytes(group), 0)


def cores(process: Path = PROCESS) -> int:
    """Return the number of cores this process can compute on at a time: those it may run on, and no
    more than its groups' quotas pay for; further threads would only wait."""
    quotas = (max(math.floor(quota), 1) for quota in _quotas(process))
    return min(len(os.sched_getaffinity(0)), *quotas, os.cpu_count() or 1)


def memory_kills(process: Path = PROCESS) -> int:
    """Return how many processes the kernel has killed for memory: in this process's group, or since
    the machine booted where that keeps no count."""
    files = [group / name for group in _groups("memory", process) for name in _KILL_FILES]
    for file in (*files, Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(_figures(file)["oom_kill"])
    return 0


def _groups(controller: str, process: Path) -> Iterator[Path]:
    """Yield folders of this process's groups of a controller, each followed by those above it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        paths = _paths(process)
        for line in _text(process / "mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            root, place = (_unescaped(field) for field in before.split()[3:5])
            kind, _, options = after.split(maxsplit=2)
            name = "" if kind == "cgroup2" else controller
            if kind not in ("cgroup", "cgroup2") or name not in paths:
                continue
            if kind == "cgroup2" or controller in options.split(","):
                yield from _upwards(Path(place), paths[name], root)


def _paths(process: Path) -> dict[str, str]:
    """Return the path of this process's group by controller; "" is the second version's."""
    lines = (line.split(":", 2) for line in _text(process / "cgroup").splitlines())
    return {name: path for _, names, path in lines for name in names.split(",")}


def _upwards(place: Path, path: str, root: str) -> Iterator[Path]:
    group = PurePosixPath(path)
    within = group.is_relative_to(root) and ".." not in group.parts
    below = group.relative_to(root) if within else PurePosixPath()
    yield place / below
    yield from (place / parent for parent in below.parents)


def _quotas(process: Path) -> Iterator[float]:
    """Cores' worth of processor time that each group has."""
    for group in _groups("cpu", process):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = map(int, _text(group / "cpu.max").split())
            yield quota / period
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (int(_text(group / name)) for name in names)
            if quota > 0:
                yield quota / period


def _cached_bytes(group: Path) -> int:
    """Return file pages of a group that the kernel gives back when memory is asked for."""
    figures = _figures(group / "memory.stat")
    return int(figures.get("total_inactive_file") or figures.get("inactive_file") or 0)


def _figures(file: Path) -> dict[str, str]:
    return dict(line.split() for line in _text(file).splitlines())


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")


def _unescaped(field: str) -> str:
    """Return a field of mountinfo, in which blanks are written as octal numbers."""
    raw = field.encode(errors="surrogateescape").decode("unicode_escape")
    return raw.encode("latin-1").decode(errors="surrogateescape")
