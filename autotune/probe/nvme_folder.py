"""A folder on an NVMe disk for each probe, which is gone when the probe is."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.probe.protocol import ProbeRequest
from autotune.process.proc import process_namespace, start_ticks

_NAME = "autotune-probe-"


@contextlib.contextmanager
def own_folder(request: ProbeRequest) -> Iterator[ProbeRequest]:
    """The request with a folder below its `nvme_path` in place of that, for as long as it runs.

    What probes of a process that was killed have left there is removed first: of this host alone,
    as another may share the disk. Where no folder can be made the request stays as it is: the child
    says why nothing can be kept there.
    """
    if request.deepspeed is None or not request.parsed_sharding.on_disk:
        yield request
        return
    disk = Path(request.parsed_sharding.nvme_path)
    folder = disk / f"{_prefix()}{os.getpid()}-{start_ticks(os.getpid())}"
    with contextlib.suppress(OSError):
        _remove_left_over(disk)
        folder.mkdir(exist_ok=True)
    try:
        yield (
            dataclasses.replace(request, deepspeed=_with_folder(request.deepspeed, str(folder)))
            if folder.is_dir()
            else request
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_folder(deepspeed: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """DeepSpeed's file with another folder on disk."""
    zero = dict(deepspeed["zero_optimization"])
    for name, section in zero.items():
        if isinstance(section, Mapping) and "nvme_path" in section:
            zero[name] = {**section, "nvme_path": folder}
    return {**deepspeed, "zero_optimization": zero}


def _prefix() -> str:
    """Return how the folders of this host begin; of a container that has process numbers of its
    own, too, which may bear the host's name."""
    return f"{_NAME}{os.uname().nodename}-{process_namespace()}-"


def _remove_left_over(disk: Path) -> None:
    """Remove the folders of processes of this host that are gone; a process that has the number of
    one of them now began later."""
    for folder in disk.glob(f"{_NAME}*"):
        pid, _, started = folder.name.removeprefix(_prefix()).partition("-")
        if not (pid.isdecimal() and started.isdecimal()):
            continue
        if start_ticks(int(pid)) != int(started):
            shutil.rmtree(folder, ignore_errors=True)
