"""What a run needs of its machine: a function for each thing, from what was looked at to findings.

Plain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.doctor.import_worker import TRAINERS, ImportReply, TorchFacts
from autotune.facts.devices import DeviceFacts, DriverState
from autotune.facts.stack import FIT_TRL, OPTIONAL, kernels_range, unfit
from autotune.probe.measure import describe_processes
from autotune.process.disk import FULL_BYTES, LITTLE_SHARED_BYTES
from autotune.space.attention import FLASH, KERNELS
from autotune.space.packages import PACKAGES, QUANTISER, Package
from autotune.units import format_bytes

State = Literal["ok", "warn", "fail", "unknown"]
"""`fail`: trainings do not work, or not as one would think; `warn`: some of them do not, or they
are slower; `unknown`: it could not be looked at."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
CUDA_BUILD = "pip install --force-reinstall torch=={version}  (the build with CUDA: {where})"
NAMELESS_BYTES, NAMELESS_SHARE = 2**30, 0.02
"""In use on a GPU, and of its memory, though NVML lists no process: the driver keeps less."""
HELPFUL = (KERNELS, "liger-kernel", QUANTISER)
LITTLE_DISK_BYTES = 5 * 2**30
_PACKAGES = {module: name for name, module in reversed(OPTIONAL.items())}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        found: what was found.
        remedy: one line that a user can type or do; empty where nothing is wrong.
        source: where it was looked up, and how it is known that it matters.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    source: str


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A folder that is written to: what for, and the variable that moves it."""

    use: str
    folder: Path
    variable: str
    free_bytes: int | None
    writable: bool


def count(findings: Iterable[Finding], state: State) -> int:
    """Return how many findings are in a state."""
    return sum(finding.state == state for finding in findings)


def check_driver(driver: DriverState) -> Finding:
    """Return whether NVML finds a driver where there are GPUs."""
    name, source = "driver", "NVML; vendor and class of the devices in /sys/bus/pci"
    if driver.version is None and driver.on_bus:
        found = f"GPUs of NVIDIA's on the PCI bus: {driver.on_bus}, but NVML finds no driver"
        remedy = "install NVIDIA's driver; in a container: start it with `--gpus all`"
        return _finding(name, "fail", found, remedy, source)
    if driver.problem:
        remedy = "see whether `nvidia-smi` works; a GPU that has fallen off needs a restart"
        return _finding(name, "fail", driver.problem, remedy, source)
    if not driver.gpus:
        found = "no NVIDIA GPU is visible: trainings run on the CPU"
        return _finding(name, "ok", found, "", source)
    newest = f", takes CUDA up to {_dotted(driver.cuda)}" if driver.cuda else ""
    names = sorted({gpu.name for gpu in driver.gpus})
    found = f"{driver.version}{newest}; {len(driver.gpus)} x {', '.join(names)}"
    return _finding(name, "ok", found, "", source)


def check_visible(
    driver: DriverState, visible: Sequence[int] | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield which GPUs CUDA shows.

    Args:
        visible: NVML's numbers; None: the variable names a slice of a GPU.
    """
    if not driver.gpus:
        return
    setting = environment.get(VISIBLE)
    state: State = "fail"
    if visible is None:
        found = f"{VISIBLE}={setting} names a slice of a GPU (MIG): autotune knows whole ones only"
    else:
        found = f"{len(visible)} of {len(driver.gpus)}"
        found = found if setting is None else f"{VISIBLE}={setting} shows {found}"
        entries = len(setting.split(",")) if setting else len(visible)
        state = "fail" if not visible else "warn" if len(visible) < entries else "ok"
    remedy = f"unset {VISIBLE}, or list numbers below {len(driver.gpus)} in it, each once"
    yield _finding("visible GPUs", state, found, remedy, f"{VISIBLE}, read as CUDA does")


def check_build(driver: DriverState, torch: TorchFacts) -> Finding:
    """Return whether torch is built for a CUDA that the driver takes."""
    name, source = "torch and CUDA", "torch.version in a child; NVML's CUDA version"
    version = torch.version.partition("+")[0]
    if torch.hip is not None or torch.cuda is None:
        build = f"ROCm {torch.hip}" if torch.hip else "the CPU"
        found = f"torch {torch.version} is built for {build}"
        if not driver.gpus:
            return _finding(name, "ok", found, "", source)
        found += f", and this machine has NVIDIA's GPUs: {len(driver.gpus)}"
        remedy = CUDA_BUILD.format(version=version, where="PyPI has it for Linux")
        return _finding(name, "fail", found, remedy, source)
    found = f"torch {torch.version} is built for CUDA {torch.cuda}"
    if driver.cuda is None:
        return _finding(name, "ok", found, "", source)
    found += f"; the driver takes CUDA up to {_dotted(driver.cuda)}"
    computes = "" in torch.trials.values()
    # Within one major version older drivers do: NVIDIA's "minor version compatibility".
    if computes or int(torch.cuda.split(".")[0]) <= driver.cuda[0]:
        return _finding(name, "ok", found, "", source)
    where = f"one for CUDA {driver.cuda[0]}, see pytorch.org"
    remedy = f"update NVIDIA's driver, or {CUDA_BUILD.format(version=version, where=where)}"
    source += "; NVIDIA's CUDA Compatibility: a driver takes its own major version and older ones"
    return _finding(name, "fail", found, remedy, source)


def check_trials(
    driver: DriverState, torch: TorchFacts, visible: Sequence[int]
) -> Iterator[Finding]:
    """Yield whether torch computes on each GPU.

    Args:
        visible: NVML's numbers, by torch's.
    """
    for place, number in enumerate(visible):
        model, trial = driver.gpus[number].name, torch.trials.get(str(place))
        state: State = "ok"
        found, remedy = f"{model} added 64 ones", ""
        if trial is None:
            state = "unknown"
            found = f"{model}: others use it, so nothing was computed on it"
            remedy = "run `autotune doctor` again once they have ended"
        elif trial:
            state, found = "fail", f"{model} does not add 64 ones: {trial}"
            remedy = "see whether `nvidia-smi` works; install a build of torch for this GPU"
        yield _finding(f"GPU {number}", state, found, remedy, "torch in a child")


def check_others(driver: DriverState, visible: Sequence[int]) -> Iterator[Finding]:
    """Yield who else uses the visible GPUs."""
    gpus = [driver.gpus[number] for number in visible]
    used = [gpu for gpu in gpus if is_used(gpu)]
    name = "other processes"
    if gpus and not used:
        yield _finding(name, "ok", "no other process uses the GPUs", "", "NVML")
    for gpu in used:
        found = describe_processes(gpu)
        if not gpu.is_busy:
            held = format_bytes(gpu.total_bytes - gpu.free_bytes)
            found = f"GPU {gpu.index}: {held} are held by a process that NVML does not list"
        remedy = f"end them, or name another GPU (`devices.index`, {VISIBLE})"
        source = "NVML; a probe on a GPU that others use is refused"
        yield _finding(name, "fail" if len(used) == len(gpus) else "warn", found, remedy, source)


def is_used(gpu: DeviceFacts) -> bool:
    """True if others compute on a GPU, or hold memory of it."""
    least = max(NAMELESS_BYTES, int(NAMELESS_SHARE * gpu.total_bytes))
    return gpu.is_busy or gpu.total_bytes - gpu.free_bytes >= least


def check_imports(reply: ImportReply) -> Iterator[Finding]:
    """Yield whether the stack can be imported, and the optional packages that are installed: the
    stack's libraries import those."""
    name, source = "imports", "importing them in a child"
    broken = {module: problem for module, problem in reply.problems.items() if problem}
    for module, problem in broken.items():
        package = _PACKAGES.get(module, module)
        what, remedy = f"`{module}`", f"pip install --force-reinstall {package}"
        if module in _PACKAGES:
            remedy += f"; or: pip uninstall {package}"
        if module == TRAINERS:
            what = "what probes use of TRL and transformers"
            remedy = "pip install --force-reinstall trl transformers"
        yield _finding(name, "fail", f"{what} cannot be imported: {problem}", remedy, source)
    if reply.ending:
        found = f"the child that looked ended too early, {reply.ending}"
        remedy = "run the import by hand for all it says: python -c 'import torch, trl, deepspeed'"
        yield _finding(name, "fail", found, remedy, source)
    elif not broken:
        modules = [module for module in reply.problems if module != TRAINERS]
        yield _finding(name, "ok", f"{', '.join(modules)} can be imported", "", source)


def check_trl() -> Iterator[Finding]:
    """Yield why the installed TRL is not supported, where it is not."""
    if (reason := unfit()) is not None:
        yield _finding("TRL", "fail", reason, FIT_TRL, "the installed package's metadata")


def check_helpful(absent: Sequence[str], device: DeviceFacts | None) -> Iterator[Finding]:
    """Yield packages that would make trainings on this GPU faster or smaller.

    Args:
        absent: what is not installed, as pip calls it.
        device: the first visible GPU; None: there is none.
    """
    if device is None:
        return
    for name in HELPFUL:
        packages = [package for package in PACKAGES if package.name == name]
        here = name not in absent or (name == KERNELS and FLASH[0].package not in absent)
        if here or not all(package.runs(device) for package in packages):
            continue
        found = f"{name} is not installed: {_needs(name, packages)} left out"
        versions = kernels_range() if name == KERNELS else ""
        remedy = f"pip install '{name}{versions}'" if versions else f"pip install {name}"
        source = "the installed modules; what values of knobs need them"
        yield _finding("packages", "warn", found, remedy, source)


def _needs(name: str, packages: Sequence[Package]) -> str:
    if name == QUANTISER:
        return "`tuning: qlora` is refused, and 8-bit and paged optimizers are"
    values = {f"`{package.knob}: {str(v).lower()}`" for package in packages for v in package.values}
    return f"{', '.join(sorted(values))} is"


def check_shared_memory(shared: tuple[int, int] | None) -> Finding:
    """Return whether there is room for what data workers and NCCL pass from process to process.

    Args:
        shared: free and total bytes; None: there is no such folder.
    """
    name = "/dev/shm"
    source = "statvfs; with 64 KiB left data workers hung, with nothing they failed (docs/log.md)"
    remedy = "docker run --shm-size=8g, or: sudo mount -o remount,size=8G /dev/shm"
    if shared is None:
        found = "there is none: data workers, NCCL and gloo pass data through it"
        return _finding(name, "warn", found, remedy, source)
    free, total = map(format_bytes, shared)
    return _finding(
        name, _room(shared[0], LITTLE_SHARED_BYTES), f"{free} of {total} free", remedy, source
    )


def check_disks(disks: Iterable[Disk]) -> Iterator[Finding]:
    """Yield whether there is room where things are kept."""
    for disk in disks:
        state: State = "unknown"
        found = f"{disk.folder} could not be looked at"
        remedy = f"free some, or name another disk: export {disk.variable}=/path"
        if not disk.writable:
            state, found = "fail", f"{disk.folder} cannot be written to"
        elif disk.free_bytes is not None:
            state = _room(disk.free_bytes, LITTLE_DISK_BYTES)
            found = f"{format_bytes(disk.free_bytes)} free in {disk.folder}"
        yield _finding(disk.use, state, found, remedy, "statvfs and access(2) of the folder")


def _room(free: int, little: int) -> State:
    return "fail" if free < FULL_BYTES else "warn" if free < little else "ok"


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def _finding(name: str, state: State, found: str, remedy: str, source: str) -> Finding:
    """Return a finding, with its remedy where something is wrong."""
    remedy = "" if state == "ok" else remedy
    return Finding(name=name, state=state, found=found, remedy=remedy, source=source)
