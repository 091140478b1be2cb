"""What a probe keeps on an NVMe disk is in a folder of its own, and gone when the probe is."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.probe.protocol import ProbeRequest

_NAME = "autotune-probe-"


@contextlib.contextmanager
def own_folder(request: ProbeRequest) -> Iterator[ProbeRequest]:
    """The request with a folder below its `nvme_path` in place of that, for as long as it runs.

    What probes of a process that was killed have left there is removed first. Where no folder can
    be made the request stays as it is: the child says why nothing can be kept there.
    """
    if request.deepspeed is None or not request.shared.on_disk:
        yield request
        return
    disk = Path(request.shared.nvme_path)
    folder = disk / f"{_NAME}{os.getpid()}"
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


def _remove_left_over(disk: Path) -> None:
    for folder in disk.glob(f"{_NAME}*"):
        pid = folder.name.removeprefix(_NAME)
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
