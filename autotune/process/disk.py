"""Room on disks and in shared memory: what could not be written says nothing of its writer."""

import os
from collections.abc import Iterable
from pathlib import Path

FULL_BYTES = 2**20
"""A disk with less is full: a reply, a log and a page of a database need no more."""
SHARED = Path("/dev/shm")
LITTLE_SHARED_BYTES = 2**30
"""Little shared memory: a container has 64 MiB by default, a machine half of its memory."""


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write to the disk of a folder.

    Raises:
        OSError: there is no such folder.
    """
    disk = os.statvfs(folder)
    return disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)


def full_disk(folders: Iterable[Path]) -> Path | None:
    """Return the first of these folders whose disk is full; None: there is room in all of them."""
    return next((one for one in folders if one.is_dir() and free_bytes(one) < FULL_BYTES), None)


def little_shared_memory() -> int | None:
    """Return the free bytes of shared memory if they are so few that processes that pass batches to
    each other may have failed for that; None: there is enough, or no such memory."""
    try:
        free = free_bytes(SHARED)
    except OSError:
        return None
    return free if free < LITTLE_SHARED_BYTES else None
