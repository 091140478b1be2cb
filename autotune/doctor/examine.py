"""All findings of this machine. Looks first, judges then; CUDA is started in a child alone."""

import importlib.metadata
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

from autotune.doctor import gpu_checks, host_checks, stack_checks
from autotune.doctor.finding import Finding
from autotune.doctor.host_facts import HostState, build_tools, host_state, left_locks
from autotune.doctor.imports import import_stack
from autotune.doctor.torch_facts import ImportReply
from autotune.errors import MachineError
from autotune.facts import devices, stack
from autotune.facts.driver import DriverState, driver_state
from autotune.job.methods import METHODS


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All that was looked at.

    Attributes:
        visible: NVML's numbers of the GPUs that CUDA shows; None: it is told to show slices.
        requirements: of autotune; None: it is not installed.
        installed: their versions; None: not installed.
        absent: optional packages that are not there.
        missing: methods that the installed TRL does not train, and why.
        locks: that a killed compiler has left.
    """

    driver: DriverState
    visible: tuple[int, ...] | None
    environment: Mapping[str, str]
    imports: ImportReply
    requirements: Sequence[Requirement] | None
    installed: Mapping[str, str | None]
    absent: Sequence[str]
    missing: Mapping[str, str]
    tools: Mapping[str, bool]
    locks: Sequence[str]
    host: HostState


def look() -> Machine:
    """Look at this machine; takes some ten seconds of a core, to import the stack."""
    host = host_state()  # before the child makes the machine busy
    driver = driver_state()
    visible = _visible() if driver.gpus else ()
    quiet = [
        place
        for place, number in enumerate(visible or ())
        if not gpu_checks.is_used(driver.gpus[number])
    ]
    requirements = _requirements()
    reasons = {method: stack.missing(method) for method in METHODS}
    return Machine(
        driver=driver,
        visible=visible,
        environment=dict(os.environ),
        imports=_imports(quiet),
        requirements=requirements,
        installed={needed.name: stack.version(needed.name) for needed in requirements or ()},
        absent=stack.absent(),
        missing={method: reason for method, reason in reasons.items() if reason},
        tools=build_tools(os.environ),
        locks=left_locks(os.environ),
        host=host,
    )


def judge(machine: Machine) -> Iterator[Finding]:
    """Yield what there is to say of it, in the order in which it is shown."""
    driver, visible = machine.driver, machine.visible or ()
    torch = machine.imports.torch
    yield gpu_checks.check_driver(driver)
    yield from gpu_checks.check_visible(driver, machine.visible, machine.environment)
    if torch is not None:
        yield gpu_checks.check_build(driver, torch)
        if torch.cuda is not None:
            yield from gpu_checks.check_kernels(driver, torch, visible)
        yield from gpu_checks.check_nccl(torch, visible, machine.environment)
    yield from gpu_checks.check_others(driver, visible)
    yield from gpu_checks.check_health(driver, visible)
    yield from stack_checks.check_requirements(machine.requirements, machine.installed)
    yield from stack_checks.check_imports(machine.imports)
    yield from stack_checks.check_methods(machine.missing)
    first = driver.gpus[visible[0]].device if visible else None
    yield from stack_checks.check_helpful(machine.absent, first)
    yield from stack_checks.check_allocator(machine.environment)
    yield from stack_checks.check_compiler(machine.tools)
    yield from stack_checks.check_locks(machine.locks)
    host = machine.host
    yield from host_checks.check_memory(host)
    yield host_checks.check_shared_memory(host)
    yield from host_checks.check_cores(host)
    yield from host_checks.check_disks(host.disks)
    yield host_checks.check_nvme(host)
    yield host_checks.check_locked_memory(host)
    yield host_checks.check_ports(host)


def _visible() -> tuple[int, ...] | None:
    try:
        return devices.visible_gpus()
    except MachineError:  # a slice
        return None


def _imports(gpus: Sequence[int]) -> ImportReply:
    try:
        return import_stack(gpus)
    except (MachineError, OSError) as error:  # a full disk, no more processes
        return ImportReply(problems={}, ending=f"before it began: {error}")


def _requirements() -> list[Requirement] | None:
    try:
        texts = importlib.metadata.requires(stack.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    return stack_checks.read_requirements(texts or ())
