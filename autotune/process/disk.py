"""Room on disks and in shared memory: what could not be written says nothing of its writer."""

import shutil
from pathlib import Path

from autotune.errors import machine_error

FULL_BYTES = 2**20
"""A disk with less is full: a reply, a log and a page of a database need no more."""
SHARED = Path("/dev/shm")
LITTLE_SHARED_BYTES = 2**30
"""Of shared memory: a container has 64 MiB unless told otherwise, a machine half of its memory."""


def refuse_full(*folders: Path) -> None:
    """Folders whose disk has no room left end the command.

    Raises:
        MachineError: so it is.
    """
    for folder in folders:
        if shutil.disk_usage(folder).free < FULL_BYTES:
            raise machine_error(
                "the disk is full",
                where=str(folder),
                hint="make room; what was measured is kept: go on with --resume",
            )


def little_shared_memory() -> int | None:
    """What there is of shared memory, where that is so little that it may be why processes that
    pass batches to each other failed. Bytes; None: there is enough, or no such thing."""
    try:
        total = shutil.disk_usage(SHARED).total
    except OSError:
        return None
    return total if total < LITTLE_SHARED_BYTES else None
