"""NVIDIA's driver and its GPUs as they are now, and the GPUs that stand there without a driver."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import MachineError
from autotune.facts import devices
from autotune.facts.devices import DeviceFacts

PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"
"""The maker's number, and how the class of a device for graphics or for computing begins."""


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
    gpus: tuple[DeviceFacts, ...] = ()
    problem: str = ""


def driver_state() -> DriverState:
    """Return the driver and its GPUs as they are now."""
    cuda, problem, version = 0, "", None
    gpus: tuple[DeviceFacts, ...] = ()
    with devices.nvml_open() as nvml:
        if nvml is None:
            return DriverState(on_bus=gpus_on_bus())
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
            cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        try:
            gpus = tuple(devices.gpu(n) for n in range(nvml.nvmlDeviceGetCount()))
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
    count = 0
    for device in folder.glob("*"):
        with contextlib.suppress(OSError):
            maker, kind = ((device / name).read_text("ascii") for name in ("vendor", "class"))
            count += maker.strip() == NVIDIA and kind.startswith(DISPLAY)
    return count
