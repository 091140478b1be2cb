"""Memory, cores, disks, ports: what the devices stand in. Plain."""

from collections.abc import Iterator, Sequence

from autotune.doctor.finding import Finding, State
from autotune.doctor.host_facts import NODES_PORT, Disk, HostState
from autotune.process.disk import FULL_BYTES, LITTLE_SHARED_BYTES
from autotune.units import format_bytes

LITTLE_MEMORY_BYTES = 4 * 2**30
"""The stack alone takes about one; a rank that loads a small model a few."""
FAR_BELOW = 0.5
"""Of the machine's memory or cores: a limit below that may not be meant."""
LITTLE_DISK_BYTES = 5 * 2**30
MUCH_WAITING = 0.2
"""Of the time somebody waits for a core: what is timed then counts for little."""


def check_memory(host: HostState) -> Iterator[Finding]:
    """Yield what new processes can get of the host's memory."""
    name, source = "host memory", "/proc/meminfo; the control groups of this process, cgroups(7)"
    allowed = host.limit_bytes or host.machine_bytes
    found = f"{format_bytes(host.free_bytes)} of {format_bytes(allowed)} free"
    raising = "raise the limit (docker run --memory, Slurm --mem, systemd MemoryMax)"
    if host.limit_bytes is not None:
        found += f"; a control group allows that much of {format_bytes(host.machine_bytes)}"
    state: State = "ok"
    remedy = ""
    if host.limit_bytes is not None and host.limit_bytes < FAR_BELOW * host.machine_bytes:
        state, remedy = "warn", raising
    if host.free_bytes < LITTLE_MEMORY_BYTES:
        state = "warn"
        remedy = remedy or "end other programs, or take a machine with more memory"
    yield _finding(name, state, found, remedy, source)
    if host.memory_kills:
        yield Finding(
            name=name,
            state="warn",
            found=f"processes that the kernel has killed for memory: {host.memory_kills}, since "
            "this group or the machine began",
            remedy=f"dmesg | grep -i oom  says which; then {raising}",
            source="memory.events of the control group, or /proc/vmstat",
        )


def check_shared_memory(host: HostState) -> Finding:
    """Room for what data workers and NCCL pass from process to process."""
    name = "/dev/shm"
    source = "statvfs; with 64 KiB left data workers hung, with nothing they failed (docs/log.md)"
    remedy = "docker run --shm-size=8g, or: sudo mount -o remount,size=8G /dev/shm"
    if host.shared_free_bytes is None or host.shared_bytes is None:
        found = "there is none: data workers, NCCL and gloo pass data through it"
        return Finding(name=name, state="warn", found=found, remedy=remedy, source=source)
    free = host.shared_free_bytes
    found = f"{format_bytes(free)} of {format_bytes(host.shared_bytes)} free"
    return _finding(name, _room(free, LITTLE_SHARED_BYTES), found, remedy, source)


def _room(free: int, little: int) -> State:
    return "fail" if free < FULL_BYTES else "warn" if free < little else "ok"


def check_disks(disks: Sequence[Disk]) -> Iterator[Finding]:
    """Yield whether there is room where things are kept."""
    for disk in disks:
        name, source = disk.use, "statvfs and access(2) of the folder"
        remedy = f"free some, or name another disk: export {disk.variable}=/path"
        if not disk.writable:
            found = f"{disk.folder} cannot be written to"
            yield _finding(name, "fail", found, f"export {disk.variable}=/path", source)
        elif disk.free_bytes is None:
            found = f"{disk.folder} could not be looked at"
            yield _finding(name, "unknown", found, remedy, source)
        else:
            found = f"{format_bytes(disk.free_bytes)} free in {disk.folder}"
            yield _finding(name, _room(disk.free_bytes, LITTLE_DISK_BYTES), found, remedy, source)


def check_locked_memory(host: HostState) -> Finding:
    """Return how much a process may lock."""
    name, source = "locked memory", "RLIMIT_MEMLOCK, CAP_IPC_LOCK; DeepSpeed's page_alloc.cpp"
    if host.locked_bytes is None:
        return Finding(name=name, state="ok", found="without a limit", source=source)
    found = f"{format_bytes(host.locked_bytes)} a process"
    if not (host.nvme or host.infiniband):
        found += "; there is neither InfiniBand nor an NVMe disk, which need more"
        return Finding(name=name, state="ok", found=found, source=source)
    found += ": offloading to a disk and InfiniBand lock buffers of GiBs"
    remedy = "ulimit -l unlimited  (docker run --ulimit memlock=-1)"
    return Finding(name=name, state="warn", found=found, remedy=remedy, source=source)


def check_nvme(host: HostState) -> Finding:
    """Return whether states can be offloaded to a disk."""
    name, source = "NVMe", "/sys/block; the linker's cache for libaio, which DeepSpeed needs"
    if not host.nvme:
        found = "no disk of this kind is to be seen here"
        return Finding(name=name, state="ok", found=found, source=source)
    found = ", ".join(host.nvme)
    if host.libaio:
        return Finding(name=name, state="ok", found=f"{found}; libaio is there", source=source)
    found += "; libaio is missing: `offload_optimizer_device: nvme` cannot be compiled"
    remedy = "apt-get install libaio-dev"
    return Finding(name=name, state="warn", found=found, remedy=remedy, source=source)


def check_ports(host: HostState) -> Finding:
    """Return whether ranks can meet."""
    name, source = "ports", "bind(2) on 127.0.0.1"
    free, nodes = host.ports
    if not free:
        found = "the kernel gives this process no port on 127.0.0.1: ranks cannot meet"
        remedy = "bring the loopback device up: sudo ip link set lo up"
        return Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
    if not nodes:
        found = f"{NODES_PORT} is in use: launch_nodes.sh meets at it on the first machine"
        remedy = "export MAIN_PORT=29501  (before launch_nodes.sh, on each machine)"
        return Finding(name=name, state="warn", found=found, remedy=remedy, source=source)
    found = f"the kernel gives ports on 127.0.0.1, and {NODES_PORT} is free"
    return Finding(name=name, state="ok", found=found, source=source)


def check_cores(host: HostState) -> Iterator[Finding]:
    """Yield how many cores there are for us, and whether others take them."""
    source = "sched_getaffinity(2) and the control groups' quotas"
    found = f"{host.cores} of {host.machine_cores}"
    few = host.cores < FAR_BELOW * host.machine_cores
    remedy = "raise the limit (docker run --cpus, Slurm --cpus-per-task, taskset)"
    yield _finding("cores", "warn" if few else "ok", found, remedy, source)
    name, source = "other work", "/proc/pressure/cpu; processor time of others in half a second"
    if host.waiting is None:
        found, remedy = "this kernel does not tell who waits for a core", "uptime  shows the load"
        yield _finding(name, "unknown", found, remedy, source)
        return
    found = f"{host.waiting:.0%} of the last 10 s some process waited for a core"
    if host.busiest:
        found += f"; busy: {', '.join(host.busiest)}"
    remedy = "wait for it or end it: probes of a busy machine are too slow to rank"
    yield _finding(name, "warn" if host.waiting > MUCH_WAITING else "ok", found, remedy, source)


def _finding(name: str, state: State, found: str, remedy: str, source: str) -> Finding:
    """With its remedy, where something is wrong."""
    remedy = "" if state == "ok" else remedy
    return Finding(name=name, state=state, found=found, remedy=remedy, source=source)
