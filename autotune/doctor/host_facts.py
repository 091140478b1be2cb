"""What the machine around the devices is like now. Bytes; None: it cannot be looked at."""

import contextlib
import ctypes.util
import os
import resource
import shutil
import socket
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.facts.control_group import cores, memory_kills, memory_limits
from autotune.facts.host import host, machine_bytes
from autotune.facts.stack import module_found
from autotune.process.busiest import busiest_others
from autotune.process.disk import SHARED, free_bytes
from autotune.process.user_cache import user_cache

IPC_LOCK = 14
"""The capability that locks memory without a limit (capabilities(7))."""
NODES_PORT = 29500
"""What launches over several machines meet at, unless told otherwise."""
NVME = "nvme"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A folder that is written to: what for, and the variable that moves it."""

    use: str
    folder: Path
    variable: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True, kw_only=True)
class HostState:
    """The machine as it is now.

    Attributes:
        machine_bytes: memory of the whole machine.
        limit_bytes: what control groups allow of it; None: they allow all.
        free_bytes: what new processes could get.
        memory_kills: processes that the kernel has killed for memory.
        shared_bytes, shared_free_bytes: of /dev/shm.
        locked_bytes: how much memory a process may lock; None: without a limit.
        cores: that this process may compute on, of `machine_cores`.
        waiting: share of the last 10 s in which somebody waited for a core.
        busiest: other processes that compute now.
        ports: whether the kernel gives this process a port of its own, and whether that of
            launches over several machines is free.
        infiniband: whether there are network cards of this kind.
        nvme: NVMe disks.
        libaio: whether the library is there that DeepSpeed writes to them with.
    """

    machine_bytes: int
    limit_bytes: int | None
    free_bytes: int
    memory_kills: int
    shared_bytes: int | None
    shared_free_bytes: int | None
    locked_bytes: int | None
    cores: int
    machine_cores: int
    waiting: float | None
    busiest: tuple[str, ...]
    ports: tuple[bool, bool]
    infiniband: bool
    nvme: tuple[str, ...]
    libaio: bool
    disks: tuple[Disk, ...]


def host_state() -> HostState:
    """Return the machine as it is now; takes half a second, in which others are watched."""
    memory = host()
    limit = min((limit for limit, _ in memory_limits()), default=None)
    shared = _statvfs(SHARED)
    disks = sorted(path.name for path in Path("/sys/block").glob(f"{NVME}*"))
    return HostState(
        machine_bytes=machine_bytes(),
        limit_bytes=limit if limit is not None and limit < machine_bytes() else None,
        free_bytes=memory.free_bytes,
        memory_kills=memory_kills(),
        shared_bytes=shared.f_frsize * shared.f_blocks if shared else None,
        shared_free_bytes=_free(SHARED),
        locked_bytes=locked_bytes(),
        cores=cores(),
        machine_cores=os.cpu_count() or 1,
        waiting=waiting(),
        busiest=tuple(busiest_others()),
        ports=(_can_bind(0), _can_bind(NODES_PORT)),
        infiniband=any(Path("/sys/class/infiniband").glob("*")),
        nvme=tuple(disks),
        libaio=ctypes.util.find_library("aio") is not None,
        disks=tuple(_disks(os.environ)),
    )


def locked_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Return how much memory this process may lock; None: as much as it likes."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = status.read_text("utf-8").splitlines()
        held = int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
        if held >> IPC_LOCK & 1:
            return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def waiting(pressure: Path = Path("/proc/pressure/cpu")) -> float | None:
    """Share of the last 10 s in which some process of the machine waited for a core."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        some = pressure.read_text("ascii").split()
        return float(some[1].partition("=")[2]) / 100
    return None


def build_tools(environment: Mapping[str, str]) -> dict[str, bool]:
    """Return what DeepSpeed compiles with, and whether it is there."""
    compilers = (environment.get("CXX") or "g++").split()[:1]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return {
        "a C++ compiler": any(shutil.which(name) for name in compilers),
        "ninja": shutil.which("ninja") is not None or module_found("ninja"),
        "Python's headers": headers.is_file(),
    }


def left_locks(environment: Mapping[str, str]) -> list[str]:
    """Return locks in torch's folders of compiled extensions that no process here has open."""
    named = environment.get("TORCH_EXTENSIONS_DIR")
    folder = Path(named) if named else Path(_home_cache(environment)) / "torch_extensions"
    locks = {str(lock) for lock in folder.glob("*/lock" if named else "*/*/lock")}
    return sorted(locks - (_open_files() if locks else set()))


def _home_cache(environment: Mapping[str, str]) -> str:
    return environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


def _open_files() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # gone, or somebody else's
            found.add(str(entry.readlink()))
    return found


def _disks(environment: Mapping[str, str]) -> list[Disk]:
    hub = environment.get("HF_HOME") or str(Path(_home_cache(environment)) / "huggingface")
    places = (
        ("autotune's cache", user_cache(), "AUTOTUNE_CACHE"),
        ("models and data of the hub", Path(hub), "HF_HOME"),
        ("temporary files", _temporary(), "TMPDIR"),
    )
    return [_disk(*place) for place in places]


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # all of them are full
        return Path("/tmp")


def _disk(use: str, folder: Path, variable: str) -> Disk:
    """Return a folder that may have to be made: then that counts in which it would be."""
    present = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))  # noqa: PTH110 a closed folder raises in pathlib
    return Disk(
        use=use,
        folder=folder,
        variable=variable,
        free_bytes=_free(present),
        writable=os.access(present, os.W_OK | os.X_OK),
    )


def _free(folder: Path) -> int | None:
    return free_bytes(folder) if _statvfs(folder) else None


def _statvfs(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _can_bind(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as those do that train
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
