"""The devices: the only door to NVML, and the CPU as a device of its own.

Memory is in bytes. Where NVML or the kernel does not tell a figure it is None, never 0. What
counts for a run is the memory that is *free*: other processes are seen and named.
"""

import contextlib
import dataclasses
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import MachineError, machine_error
from autotune.facts.host import cores, host


@dataclass(frozen=True, kw_only=True)
class DeviceProcess:
    """Another process that computes on the device."""

    pid: int
    used_bytes: int | None
    name: str | None


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One device as it is now."""

    kind: str
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    cores: int
    driver: str | None = None
    capability: tuple[int, int] | None = None
    processes: tuple[DeviceProcess, ...] = ()
    maker: str = "NVIDIA"
    """Of a GPU; others than NVIDIA's can be planned for, and are not on this machine."""
    peers: tuple[int, ...] = ()
    """Of several GPUs the numbers of the others."""

    @property
    def is_busy(self) -> bool:
        """True if other processes compute on this GPU."""
        return bool(self.processes)


def detect(kind: str, index: int, count: int = 1) -> DeviceFacts:
    """Return the device a job asks for; of several GPUs the first, with the least that any of them
    has free; on the CPU what one of as many processes may have of it.

    Args:
        index: which of the visible GPUs; the device's own `index` is NVML's number of it.

    Raises:
        MachineError: `cuda` was asked for and there is no such GPU.
    """
    visible = visible_gpus() if kind != "cpu" else ()
    if kind == "cpu" or (kind == "auto" and not visible):
        return cpu(count)
    if index + count > len(visible):
        raise _no_such_gpu(index, count, len(visible))
    first, *peers = (gpu(number) for number in visible[index : index + count])
    return dataclasses.replace(
        first,
        free_bytes=min(device.free_bytes for device in (first, *peers)),
        processes=tuple(process for device in (first, *peers) for process in device.processes),
        peers=tuple(device.index for device in peers),
    )


def _no_such_gpu(index: int, count: int, visible: int) -> MachineError:
    """Return the error that says which GPUs are asked for, which exist, and what to do."""
    gpus = gpu_count()
    environment = os.environ.get("CUDA_VISIBLE_DEVICES")
    request = f"GPU {index} is asked for" if count == 1 else f"{count} GPUs are asked for"
    if count > 1 and index:
        request += f", from GPU {index} on"
    machine = f"this machine has {gpus}, numbered from 0"
    hint = "lower `devices.count` or `devices.index` (`nvidia-smi -L` lists what is there)"
    if not gpus:
        machine = "this machine has no NVIDIA GPU, or no driver for one"
        hint = (
            "use `devices.kind: cpu`, or install NVIDIA's driver (`nvidia-smi -L` lists its GPUs)"
        )
    elif environment is not None:
        machine += f", of which CUDA_VISIBLE_DEVICES={environment} shows {visible}"
        hint = f"set CUDA_VISIBLE_DEVICES to others, or {hint}"
    return machine_error(
        f"{request}, but {machine}",
        where="devices.kind" if not visible else "devices.count" if count > 1 else "devices.index",
        hint=hint,
    )


def cpu(processes: int = 1) -> DeviceFacts:
    """Return the CPU with the memory that a new process could get now, or each of several."""
    memory = host()
    return DeviceFacts(
        kind="cpu",
        index=0,
        name=_cpu_name(),
        total_bytes=memory.total_bytes // processes,
        free_bytes=memory.free_bytes // processes,
        cores=cores(),
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


@contextlib.contextmanager
def nvml_open() -> Iterator[Any]:
    """Yield an open NVML, or None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpu_count() -> int:
    """Return how many GPUs NVML sees; 0 without a driver."""
    with nvml_open() as nvml:
        return 0 if nvml is None else int(nvml.nvmlDeviceGetCount())


def visible_gpus() -> tuple[int, ...]:
    """Return NVML's numbers of the GPUs that CUDA shows, in its order; none without a driver.

    Raises:
        MachineError: CUDA_VISIBLE_DEVICES names a slice of a GPU (MIG).
    """
    environment = os.environ.get("CUDA_VISIBLE_DEVICES")
    with nvml_open() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        if environment is None:
            return tuple(range(len(handles)))
        return read_visible(
            environment, [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        )


def read_visible(environment: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, by their place in `uuids`.

    Read as CUDA does: an entry is a number or how a UUID begins; the first that names no GPU ends
    the list, and a GPU named twice empties it. Numbers are taken to be NVML's (PCI order), as torch
    takes them: with GPUs of different models, CUDA_DEVICE_ORDER=PCI_BUS_ID makes that true.

    Raises:
        MachineError: an entry is a slice of a GPU (MIG).
    """
    indices: list[int] = []
    for entry in (part.strip() for part in environment.split(",")):
        if entry.startswith("MIG-"):
            raise machine_error(
                f"CUDA_VISIBLE_DEVICES={environment} names a slice of a GPU (MIG), and autotune "
                "only knows whole ones",
                where="devices",
                hint="name a whole GPU, or use `devices.kind: cpu`",
            )
        if entry.startswith("GPU-"):
            matches = [n for n, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            digits = re.match(r"\+?(\d+)", entry)
            matches = [int(digits[1])] if digits and int(digits[1]) < len(uuids) else []
        if len(matches) != 1:
            break
        if matches[0] in indices:
            return ()
        indices += matches
    return tuple(indices)


def gpu(index: int) -> DeviceFacts:
    """GPU `index` (NVML's number) with its free memory and the processes that compute on it, this
    one left out."""
    with nvml_open() as nvml:
        if nvml is None:
            raise machine_error("NVML no longer finds a driver", where="devices")
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            return DeviceFacts(
                kind="cuda",
                index=index,
                name=_text(nvml.nvmlDeviceGetName(handle)),
                total_bytes=int(memory.total),
                free_bytes=int(memory.free),
                cores=cores(),
                driver=_text(nvml.nvmlSystemGetDriverVersion()),
                capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
                processes=tuple(_processes(nvml, handle)),
            )
        except nvml.NVMLError as error:
            raise machine_error(
                f"NVML cannot read GPU {index}: {error}",
                where="devices",
                hint="check `nvidia-smi`",
            ) from None


def _running(nvml: Any, handle: Any) -> list[Any]:
    """Return NVML's list of processes; empty where it has none (virtual GPUs, MIG)."""
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except nvml.NVMLError:
        return []


def _processes(nvml: Any, handle: Any) -> Iterator[DeviceProcess]:
    for process in _running(nvml, handle):
        if process.pid == os.getpid():
            continue
        name = None
        with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
            name = _text(nvml.nvmlSystemGetProcessName(process.pid))
        yield DeviceProcess(pid=int(process.pid), used_bytes=_nvml_bytes(process), name=name)


def _nvml_bytes(process: Any) -> int | None:
    used = process.usedGpuMemory
    return None if used is None else int(used)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def gpu_process_bytes(index: int, pid: int) -> int | None:
    """Return what NVML says process `pid` holds on GPU `index`; None where it does not tell.

    In a container NVML may list pids of another namespace: then nothing matches, and the figure
    is unknown rather than somebody else's.
    """
    with nvml_open() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for process in _running(nvml, handle):
            if process.pid == pid:
                return _nvml_bytes(process)
    return None


def gpu_uuid(index: int) -> str:
    """Return what NVML calls GPU `index`, whoever asks and whatever is visible there."""
    with nvml_open() as nvml:
        if nvml is None:
            raise machine_error("NVML no longer finds a driver", where="devices")
        return _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))


def gpu_used_bytes(index: int) -> int | None:
    """Return memory in use on GPU `index` by everybody; None without NVML."""
    with nvml_open() as nvml:
        if nvml is None:
            return None
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index)).used)


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
    with nvml_open() as nvml:
        if nvml is None:
            return DriverState(on_bus=gpus_on_bus())
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
            cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        try:
            gpus = tuple(gpu(n) for n in range(nvml.nvmlDeviceGetCount()))
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
