"""All findings of this machine: looks first, judges then. CUDA is started in a child alone."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.doctor import checks
from autotune.doctor.checks import Disk, Finding
from autotune.doctor.import_worker import TRAINERS, ImportReply, ImportRequest
from autotune.errors import MachineError
from autotune.facts import devices, stack
from autotune.facts.devices import DriverState, driver_state
from autotune.facts.stack import OPTIONAL, module_found
from autotune.plain_data import from_plain, to_plain
from autotune.process.child_server import ChildServer
from autotune.process.disk import SHARED, free_bytes
from autotune.process.files import user_cache
from autotune.process.limits import Ending, Limits, signal_name
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import ending_of

WORKER = "autotune.doctor.import_worker:examine"
LIMITS = Limits(wall_s=300.0, stall_s=120.0)
STACK = ("torch", "transformers", "datasets", "accelerate", "peft", "deepspeed", "trl")
SLOW = frozenset({"vllm"})
"""Takes half a minute to be imported."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All that was looked at.

    Attributes:
        visible: NVML's numbers of the GPUs that CUDA shows; None: it is told to show slices.
        shared: free and total bytes of /dev/shm; None: there is none.
        imports: what a child imported and computed; None: none was started.
        absent: optional packages that are not there.
    """

    driver: DriverState
    visible: tuple[int, ...] | None
    environment: Mapping[str, str]
    shared: tuple[int, int] | None
    disks: Sequence[Disk]
    imports: ImportReply | None = None
    absent: Sequence[str] = ()


def preflight() -> list[Finding]:
    """Return what fails of a machine that a run is about to use: nothing is imported, and no GPU is
    computed on. Who else has the devices is the run's own question."""
    return [finding for finding in _judge_glance(_glance()) if finding.state == "fail"]


def look() -> Machine:
    """Look at this machine; takes some ten seconds of a core, to import the stack."""
    seen = _glance()
    gpus = [seen.driver.gpus[number] for number in seen.visible or ()]
    quiet = [place for place, gpu in enumerate(gpus) if not checks.is_used(gpu)]
    return replace(seen, imports=_imports(quiet), absent=stack.absent())


def judge(machine: Machine) -> Iterator[Finding]:
    """Yield what there is to say of a machine, in the order in which it is shown."""
    driver, visible, imports = machine.driver, machine.visible or (), machine.imports
    yield from _judge_glance(machine)
    yield from checks.check_others(driver, visible)
    if imports is not None:
        if imports.torch is not None:
            yield checks.check_build(driver, imports.torch)
            if imports.torch.cuda is not None:
                yield from checks.check_trials(driver, imports.torch, visible)
        yield from checks.check_imports(imports)
    yield from checks.check_trl()
    first = driver.gpus[visible[0]] if visible else None
    yield from checks.check_helpful(machine.absent, first)


def _judge_glance(machine: Machine) -> Iterator[Finding]:
    yield checks.check_driver(machine.driver)
    yield from checks.check_visible(machine.driver, machine.visible, machine.environment)
    yield checks.check_shared_memory(machine.shared)
    yield from checks.check_disks(machine.disks)


def _glance() -> Machine:
    """Look at what takes no time."""
    driver = driver_state()
    return Machine(
        driver=driver,
        visible=_visible() if driver.gpus else (),
        environment=dict(os.environ),
        shared=_shared_memory(),
        disks=tuple(_disks(os.environ)),
    )


def _visible() -> tuple[int, ...] | None:
    try:
        return devices.visible_gpus()
    except MachineError:  # a slice
        return None


def _shared_memory() -> tuple[int, int] | None:
    try:
        found = os.statvfs(SHARED)
        return free_bytes(SHARED), found.f_frsize * found.f_blocks
    except OSError:
        return None


def _disks(environment: Mapping[str, str]) -> Iterator[Disk]:
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = Path(environment.get("HF_HOME") or caches / "huggingface")
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError:  # all of them are full
        temporary = Path("/tmp")
    yield disk_of("autotune's cache", user_cache(), "AUTOTUNE_CACHE")
    yield disk_of("models and data of the hub", hub, "HF_HOME")
    yield disk_of("temporary files", temporary, "TMPDIR")


def disk_of(use: str, folder: Path, variable: str) -> Disk:
    """Return a folder that may have to be made: then that counts in which it would be."""
    present = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))  # noqa: PTH110 a closed folder raises in pathlib
    try:
        free = free_bytes(present)
    except OSError:
        free = None
    writable = os.access(present, os.W_OK | os.X_OK)
    return Disk(use=use, folder=folder, variable=variable, free_bytes=free, writable=writable)


def _imports(gpus: Sequence[int]) -> ImportReply:
    """Import the stack in a child, which computes on these GPUs of torch's."""
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-doctor-") as scratch:
            return _import_in_child(Path(scratch), gpus)
    except (MachineError, OSError) as error:  # a full disk, no more processes
        return ImportReply(problems={}, ending=f"before it began: {error}")


def _import_in_child(scratch: Path, gpus: Sequence[int]) -> ImportReply:
    optional = [m for name, m in OPTIONAL.items() if name not in SLOW and module_found(m)]
    request = ImportRequest(modules=(*STACK, TRAINERS, *optional), gpus=tuple(gpus))
    folder = ChildFolder(path=scratch / "child")
    folder.path.mkdir()
    write_json(folder.request, to_plain(request))
    with ChildServer(scratch / "server.log", preload=()) as server:
        ending = server.run(folder, WORKER, LIMITS)
    reply = ImportReply(problems={})
    with contextlib.suppress(ValueError):  # it ended before it had answered
        reply = from_plain(ImportReply, read_json(folder.reply))
    return replace(reply, ending=_early_ending(ending, folder))


def _early_ending(ending: Ending, folder: ChildFolder) -> str:
    if ending.why == "exited" and ending.exit_code == 0:
        return ""
    at = next((event["at"] for event in reversed(ending.events) if "at" in event), "starting")
    how = {
        "wall": f"it was given up after {LIMITS.wall_s:g} s",
        "stall": f"it made no progress for {LIMITS.stall_s:g} s",
    }.get(ending.why, f"exit code {ending.exit_code}")
    if ending.signal is not None and ending.why == "exited":
        how = f"{signal_name(ending.signal)} ended it"
    return f"{at}: {how}{ending_of(folder.stderr)}"
