"""NVIDIA's driver and its GPUs as they are now: what may stop a training or slow it down.

What NVML does not tell of a GPU is None.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import MachineError
from autotune.facts import devices
from autotune.facts.devices import DeviceFacts

PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"
"""The maker's number, and how the class of a device for graphics or for computing begins."""
SLOWED = {
    0x08: "its hardware slows it down",
    0x20: "it is too hot",
    0x40: "it is too hot, and its hardware slows it down",
    0x80: "its power supply asks it to brake",
}
"""Why clocks are lower than they could be, by NVML's bits; idle clocks and the usual cap of power
are no faults."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU as it is now.

    Attributes:
        used_bytes: memory that anybody holds, the driver among them.
        persistent: whether the driver stays loaded while nobody uses the GPU.
        ecc_errors: errors of its memory that could not be corrected, since the driver was loaded.
        awaits_reset: whether bad memory is replaced only after a reset.
        slowed: why its clocks are lower than they could be.
    """

    device: DeviceFacts
    used_bytes: int | None = None
    persistent: bool | None = None
    ecc_errors: int | None = None
    awaits_reset: bool | None = None
    slowed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The driver and its GPUs.

    Attributes:
        on_bus: GPUs of NVIDIA's that the PCI bus lists, whether there is a driver or not.
        version: of the driver; None: NVML finds none.
        cuda: the newest CUDA that the driver takes: major, minor.
        gpus: in NVML's order.
        problem: why they cannot be read; empty: they can.
    """

    on_bus: int = 0
    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[GpuState, ...] = ()
    problem: str = ""


def driver_state() -> DriverState:
    """Return the driver and its GPUs as they are now."""
    with devices.nvml_open() as nvml:
        if nvml is None:
            return DriverState(on_bus=gpus_on_bus())
        read = _reader(nvml)
        cuda = read(nvml.nvmlSystemGetCudaDriverVersion_v2)
        version = read(nvml.nvmlSystemGetDriverVersion)
        gpus: tuple[GpuState, ...] = ()
        problem = ""
        try:
            gpus = tuple(_gpu(nvml, read, n) for n in range(nvml.nvmlDeviceGetCount()))
        except (MachineError, nvml.NVMLError) as error:
            problem = str(error).splitlines()[0]
        return DriverState(
            on_bus=gpus_on_bus(),
            version=version.decode() if isinstance(version, bytes) else version,
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=gpus,
            problem=problem,
        )


def gpus_on_bus(folder: Path = PCI) -> int:
    """Return how many GPUs of NVIDIA's the PCI bus lists; 0 where it cannot be looked at."""
    found = 0
    for device in folder.glob("*"):
        with contextlib.suppress(OSError):
            maker, kind = ((device / name).read_text("ascii") for name in ("vendor", "class"))
            found += maker.strip() == NVIDIA and kind.startswith(DISPLAY)
    return found


def _reader(nvml: Any) -> Callable[..., Any]:
    """Calls a function of NVML; None where it does not answer."""

    def read(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None

    return read


def _gpu(nvml: Any, read: Callable[..., Any], number: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    persistent = read(nvml.nvmlDeviceGetPersistenceMode, handle)
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    rows = read(nvml.nvmlDeviceGetRemappedRows, handle)
    reasons = read(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    return GpuState(
        device=devices.gpu(number),
        used_bytes=devices.gpu_used_bytes(number),
        persistent=None if persistent is None else bool(persistent),
        ecc_errors=read(nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds),
        awaits_reset=None if rows is None else bool(rows[2]),
        slowed=tuple(words for bit, words in SLOWED.items() if reasons & bit),
    )
