"""The memory of the machine that the devices are in, for all its processes together. Bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.facts.control_group import memory_limits
from autotune.job.job import Job

KEPT_FREE = 0.05
"""Share of what is free that probes leave alone: at the last byte it is the kernel that ends
processes, and not always ours. Chosen, not measured."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What the machine has, and what of it new processes could get."""

    total_bytes: int
    free_bytes: int


def host() -> HostFacts:
    """This machine as it is now, within the control groups that this process is in."""
    memory = dict(_meminfo())
    total, free = memory["MemTotal"], memory["MemAvailable"]
    for limit, used in memory_limits():
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return HostFacts(total_bytes=total, free_bytes=free)


def machine_bytes() -> int:
    """Return memory of the whole machine, whatever control groups allow of it."""
    return dict(_meminfo())["MemTotal"]


def host_limit(job: Job, device_kind: str, host: HostFacts | None) -> int | None:
    """Return what all processes of a job may take of the host together; None: there is no such
    limit.

    On a CPU the device is the host, and each process has a limit of its own: there only what the
    job says counts. Of a machine that is not here (`host` is None) nothing else is known.
    """
    if job.devices.host_memory is not None or host is None or device_kind == "cpu":
        return job.devices.host_memory
    return int(host.free_bytes * (1 - KEPT_FREE))


def _meminfo() -> Iterator[tuple[str, int]]:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, amount = line.partition(":")
        yield name, int(amount.split()[0]) * 1024
