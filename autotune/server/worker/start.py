"""A worker for devices of this machine, made of what the command line says."""

import fcntl
import os
import platform
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.errors import user_error
from autotune.facts import devices
from autotune.server.private_folder import private_folder
from autotune.server.store.values import WorkerInfo
from autotune.server.worker.door import Door
from autotune.server.worker.loop import Capacity, WorkerLoop

SECRETS = ("AUTOTUNE_TOKEN", "AUTOTUNE_STORAGE")
"""Variables that commands of works do not get."""


def worker_info(wanted: Sequence[int] | None, machine: str | None = None) -> WorkerInfo:
    """Return the worker of some GPUs, of all that CUDA shows, or of the CPU where there is none.

    Args:
        machine: a name for this machine, in place of the one that it has.

    Raises:
        UserError: there is no such GPU.
    """
    machine = re.sub(r"[^\w.-]", "-", machine or platform.node() or "machine")[:100]
    visible = devices.visible_gpus()
    unknown = [index for index in wanted or () if index not in visible]
    if unknown:
        there = ", ".join(map(str, visible)) or "none"
        raise user_error(
            f"there is no GPU {unknown[0]} here", where="--devices", hint=f"GPUs here: {there}"
        )
    own = list(wanted if wanted is not None else visible)
    if own:
        name = f"{machine}:{'-'.join(map(str, own))}"[:128]
        gpu = devices.gpu(own[0]).name[:128]
        return WorkerInfo(
            name=name,
            machine=machine,
            device_kind="cuda",
            devices=own,
            device_name=gpu,
            instance=secrets.token_hex(8),
        )
    cores = list(range(devices_of_cpu()))
    return WorkerInfo(
        name=f"{machine}:cpu",
        machine=machine,
        device_kind="cpu",
        devices=cores,
        device_name=devices.cpu().name[:128],
        instance=secrets.token_hex(8),
    )


def devices_of_cpu() -> int:
    """Return how many ranks may train on the CPU together: as many as there are cores."""
    return len(os.sched_getaffinity(0))


def start_worker(
    address: Callable[[], str],
    token: str,
    folder: Path,
    info: WorkerInfo,
    capacity: Capacity,
) -> None:
    """Work until told to end.

    Raises:
        UserError: another worker uses the folder.
        MachineError: the service does not take this worker.
    """
    with private_folder(folder):
        _work(address, token, folder, info, capacity)


def _work(
    address: Callable[[], str], token: str, folder: Path, info: WorkerInfo, capacity: Capacity
) -> None:
    lock = os.open(folder / ".worker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            hint = "give each worker a folder of its own: --folder"
            raise user_error(
                "another worker works in this folder", where=str(folder), hint=hint
            ) from None
        before = os.pread(lock, 32, 0).decode("ascii", "replace")
        os.pwrite(lock, info.instance.encode("ascii"), 0)
        environment: dict[str, str | None] = dict.fromkeys(SECRETS)
        if info.device_kind == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, info.devices))
        loop = WorkerLoop(
            info=info,
            door=Door(address, token),
            root=folder,
            capacity=capacity,
            environment=environment,
            replaces=before,
        )
        loop.run()
    finally:
        os.close(lock)
