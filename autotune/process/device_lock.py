"""Locks of devices: one process of a user measures on a device at a time, undisturbed by the
others.

There is a lock for each GPU (by its UUID) and for each core of each machine (a home may be that of
several), in `locks/` of the user's cache. It is a lock of the kernel's (flock): it ends with the
process that holds it, however that ends. All of a job's are taken in one order, so that no two jobs
wait for each other. Its file names the holder. Where no file can be written, nothing is locked.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.facts import devices
from autotune.job.job import Devices
from autotune.process.files import private_opener, user_cache
from autotune.process.messages import read_json


@contextlib.contextmanager
def devices_locked(wanted: Devices, place: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Keep the devices of a job for this process; wait where another has one of them.

    Args:
        place: where this process writes what it measures, shown to processes that wait for it.
        waits: called with a text that names the holder, before each wait.

    Raises:
        MachineError: CUDA_VISIBLE_DEVICES names a slice of a GPU (MIG).
    """
    names, folder = lock_names(wanted), user_cache() / "locks"
    with contextlib.ExitStack() as held:
        for name in names:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = private_opener(str(folder / f"{name}.json"), os.O_RDWR | os.O_CREAT)
            except OSError:  # a read-only or full disk
                continue
            held.callback(os.close, file)
            with contextlib.suppress(OSError):  # a file system without locks
                _take(file, folder / f"{name}.json", place, waits)
        yield


def lock_names(wanted: Devices) -> list[str]:
    """Return the locks of a job's devices, in their order."""
    visible = devices.visible_gpus() if wanted.kind != "cpu" else ()
    if visible:
        own = visible[wanted.index : wanted.index + wanted.count]
        return sorted(_plain(devices.gpu_uuid(number)) for number in own)
    machine = _plain(platform.node() or "machine")
    return [f"{machine}-core-{core:04d}" for core in sorted(os.sched_getaffinity(0))]


def _take(file: int, path: Path, place: Path, waits: Callable[[str], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waits(holder_text(read_json(path)))
        fcntl.flock(file, fcntl.LOCK_EX)
    holder = {"pid": os.getpid(), "place": str(place), "since": time.strftime("%H:%M:%S")}
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(holder).encode(), 0)


def holder_text(holder: Any) -> str:
    """Return the holder of a device in words, from the contents of its lock."""
    if not isinstance(holder, dict):
        return "another autotune process measures on this device"
    pid, since, place = (holder.get(name) for name in ("pid", "since", "place"))
    return f"pid {pid} measures on this device since {since}, in {place}"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
