"""NVIDIA's driver, its GPUs, and whether the installed torch computes on them. Plain."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.doctor.finding import Finding, State
from autotune.doctor.torch_facts import TorchFacts
from autotune.facts.driver import DriverState, GpuState
from autotune.probe.measure import describe_processes
from autotune.units import format_bytes

NVML = "NVML"
NAMELESS_BYTES, NAMELESS_SHARE = 2**30, 0.02
"""In use on a GPU, and of its memory, though NVML lists no process: the driver keeps less."""
SLOWING = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
CUDA_BUILD = "pip install --force-reinstall torch=={version}  (the build with CUDA: {where})"
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def check_driver(driver: DriverState) -> Finding:
    """Return whether NVML finds a driver where there are GPUs."""
    source = "NVML; vendor and class of the devices in /sys/bus/pci"
    name = "driver"
    if driver.version is None and driver.on_bus:
        found = f"GPUs of NVIDIA's on the PCI bus: {driver.on_bus}, but NVML finds no driver"
        remedy = "install NVIDIA's driver; in a container: start it with `--gpus all`"
        return Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
    if driver.problem:
        remedy = "see whether `nvidia-smi` works; a GPU that has fallen off needs a restart"
        return Finding(name=name, state="fail", found=driver.problem, remedy=remedy, source=source)
    if not driver.gpus:
        found = "there is no GPU of NVIDIA's to be seen: trainings run on the CPU"
        return Finding(name=name, state="ok", found=found, source=source)
    newest = f", takes CUDA up to {_dotted(driver.cuda)}" if driver.cuda else ""
    names = sorted({gpu.device.name for gpu in driver.gpus})
    found = f"{driver.version}{newest}; {len(driver.gpus)} x {', '.join(names)}"
    return Finding(name=name, state="ok", found=found, source=source)


def check_visible(
    driver: DriverState, visible: Sequence[int] | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield which GPUs CUDA shows.

    Args:
        visible: NVML's numbers; None: the variable names a slice of a GPU.
    """
    setting = environment.get(VISIBLE)
    if not driver.gpus:
        return
    name, source = "visible GPUs", f"{VISIBLE}, read as CUDA does"
    remedy = f"unset {VISIBLE}, or list numbers below {len(driver.gpus)} in it, each once"
    if visible is None:
        found = f"{VISIBLE}={setting} names a slice of a GPU (MIG): autotune knows whole ones only"
        yield Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
        return
    found = f"{len(visible)} of {len(driver.gpus)}"
    if setting is not None:
        found = f"{VISIBLE}={setting} shows {found}"
    entries = len((setting or "").split(",")) if setting else len(visible)
    state: State = "fail" if not visible else "warn" if len(visible) < entries else "ok"
    wrong = remedy if state != "ok" else ""
    yield Finding(name=name, state=state, found=found, remedy=wrong, source=source)
    kinds = {gpu.device.name for gpu in driver.gpus}
    if len(kinds) > 1 and environment.get(ORDER) != "PCI_BUS_ID":
        yield Finding(
            name="order of GPUs",
            state="warn",
            found=f"{', '.join(sorted(kinds))}: CUDA numbers the fastest first, NVML by PCI bus",
            remedy=f"export {ORDER}=PCI_BUS_ID",
            source="CUDA's programming guide on CUDA_DEVICE_ORDER",
        )


def check_build(driver: DriverState, torch: TorchFacts) -> Finding:
    """Return whether torch is built for these GPUs and for a CUDA that the driver takes."""
    name, source = "torch and CUDA", "torch.version in a child; NVML's CUDA version"
    plain = torch.version.partition("+")[0]
    if torch.hip is not None or torch.cuda is None:
        build = f"ROCm {torch.hip}" if torch.hip else "the CPU"
        found = f"torch {torch.version} is built for {build}"
        if not driver.gpus:
            return Finding(name=name, state="ok", found=found, source=source)
        found += f", and this machine has NVIDIA's GPUs: {len(driver.gpus)}"
        remedy = CUDA_BUILD.format(version=plain, where="PyPI has it for Linux")
        return Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
    found = f"torch {torch.version} is built for CUDA {torch.cuda}"
    if driver.cuda is None:
        return Finding(name=name, state="ok", found=found, source=source)
    found += f"; the driver takes CUDA up to {_dotted(driver.cuda)}"
    computes = "" in torch.trials.values()
    if computes or int(torch.cuda.split(".")[0]) <= driver.cuda[0]:
        # Within one major version older drivers do: NVIDIA's "minor version compatibility".
        return Finding(name=name, state="ok", found=found, source=source)
    where = f"one for CUDA {driver.cuda[0]}, see pytorch.org"
    remedy = f"update NVIDIA's driver, or {CUDA_BUILD.format(version=plain, where=where)}"
    source += "; NVIDIA's CUDA Compatibility: a driver takes its own major version and older ones"
    return Finding(name=name, state="fail", found=found, remedy=remedy, source=source)


def check_kernels(
    driver: DriverState, torch: TorchFacts, visible: Sequence[int]
) -> Iterator[Finding]:
    """Yield whether torch has kernels for each GPU, and computes on it.

    Args:
        visible: NVML's numbers, by torch's.
    """
    for place, number in enumerate(visible):
        gpu, trial = driver.gpus[number].device, torch.trials.get(str(place))
        name = f"GPU {number}"
        if gpu.capability and torch.architectures:
            sm = "{}.{}".format(*gpu.capability)
            if not has_kernels(gpu.capability, torch.architectures):
                yield Finding(
                    name=name,
                    state="fail",
                    found=f"{gpu.name} has compute capability {sm}, and torch {torch.version} "
                    f"has kernels for {' '.join(torch.architectures)}",
                    remedy=f"install a build of torch whose torch.cuda.get_arch_list() has {sm}",
                    source="NVML; the list of architectures in torch",
                )
                continue
        yield Finding(name=name, source="torch in a child", **_trial_result(gpu.name, trial))


def _trial_result(name: str, trial: str | None) -> Any:
    """State, words and remedy."""
    if trial is None:
        found = f"{name}: others use it, so nothing was computed on it"
        remedy = "run `autotune doctor` again once they have ended"
        return {"state": "unknown", "found": found, "remedy": remedy}
    if not trial:
        return {"state": "ok", "found": f"{name} added 64 ones"}
    remedy = "see whether `nvidia-smi` works; in a container start it with `--gpus all`"
    return {"state": "fail", "found": f"{name} does not add 64 ones: {trial}", "remedy": remedy}


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """True if compiled code serves a GPU: of its generation and no newer, or PTX that is no newer.

    Args:
        architectures: `sm_90`, `sm_90a`, `compute_90`.
    """
    for kind, digits, feature in (
        match.groups()
        for match in (re.fullmatch(r"(sm|compute)_(\d+)([af]?)", a) for a in architectures)
        if match
    ):
        built = (int(digits[:-1]), int(digits[-1]))
        if feature == "a":
            serves = built == capability
        elif kind == "sm" or feature:
            serves = built[0] == capability[0] and built <= capability
        else:
            serves = built <= capability
        if serves:
            return True
    return False


def check_others(driver: DriverState, visible: Sequence[int]) -> Iterator[Finding]:
    """Yield who else uses the visible GPUs."""
    gpus = [driver.gpus[number] for number in visible]
    used = [gpu for gpu in gpus if is_used(gpu)]
    name = "other processes"
    if gpus and not used:
        yield Finding(name=name, state="ok", found="nobody else uses the GPUs", source=NVML)
    for gpu in used:
        if gpu.device.is_busy:
            found = describe_processes(gpu.device)
        else:
            held = format_bytes(gpu.used_bytes or 0)
            found = f"GPU {gpu.device.index}: {held} are held by a process that NVML does not list"
        yield Finding(
            name=name,
            state="fail" if len(used) == len(gpus) else "warn",
            found=found,
            remedy="end them, or name another GPU (`devices.index`, CUDA_VISIBLE_DEVICES)",
            source="NVML; a probe on a GPU that others use is refused",
        )


def is_used(gpu: GpuState) -> bool:
    """True if others compute on a GPU, or hold memory of it."""
    least = max(NAMELESS_BYTES, int(NAMELESS_SHARE * gpu.device.total_bytes))
    return gpu.device.is_busy or (gpu.used_bytes or 0) >= least


def check_health(driver: DriverState, visible: Sequence[int]) -> Iterator[Finding]:
    """Yield memory errors, clocks and the driver's persistence, as far as NVML tells of them."""
    gpus = [driver.gpus[number] for number in visible]
    for gpu in gpus:
        name = f"health of GPU {gpu.device.index}"
        reset = f"when nobody uses it: sudo nvidia-smi --gpu-reset -i {gpu.device.index}"
        if gpu.awaits_reset:
            found = "bad memory of it is replaced only when it is reset"
            yield Finding(name=name, state="warn", found=found, remedy=reset, source=NVML)
        elif gpu.ecc_errors:
            found = f"errors of its memory that could not be corrected: {gpu.ecc_errors}"
            yield Finding(name=name, state="warn", found=found, remedy=reset, source=NVML)
        if gpu.slowed:
            found = f"lower clocks: {' and '.join(gpu.slowed)}"
            remedy = "look at its cooling and power: nvidia-smi -q -d PERFORMANCE -i "
            remedy += str(gpu.device.index)
            yield Finding(name=name, state="warn", found=found, remedy=remedy, source=NVML)
    if any(gpu.persistent is False for gpu in gpus):
        found = "off: the driver initialises a GPU anew for each process, which takes seconds"
        yield Finding(
            name="persistence mode",
            state="warn",
            found=found,
            remedy="sudo nvidia-smi -pm 1",
            source="NVML; NVIDIA's Driver Persistence",
        )


def check_nccl(
    torch: TorchFacts, visible: Sequence[int], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what several GPUs exchange gradients with."""
    if len(visible) < 2 or torch.cuda is None:
        return
    name, source = "NCCL", "torch.cuda.nccl.version() in a child; the environment"
    if torch.nccl is None:
        remedy = CUDA_BUILD.format(version=torch.version.partition("+")[0], where="PyPI has it")
        found = f"torch {torch.version} has none, and there are {len(visible)} GPUs"
        yield Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
        return
    found = f"{torch.nccl}"
    slowing = [n for n in SLOWING if environment.get(n, "0") not in ("", "0")]
    if slowing:
        found += f"; {', '.join(slowing)} set: exchange takes a slower way"
    remedy = f"unset {' '.join(slowing)}" if slowing else ""
    state: State = "warn" if slowing else "ok"
    yield Finding(name=name, state=state, found=found, remedy=remedy, source=source)


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)
