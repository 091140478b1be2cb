"""Machines to judge: a good one, and parts of it made worse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from autotune.doctor.examine import Machine
from autotune.doctor.finding import Finding
from autotune.doctor.host_facts import Disk, HostState
from autotune.doctor.torch_facts import ImportReply, TorchFacts
from autotune.facts.devices import DeviceFacts
from autotune.facts.driver import DriverState, GpuState

GIB = 2**30
MIB = 2**20


def gpu(number: int = 0, **fields: Any) -> GpuState:
    """A GPU that nobody uses; fields of its `DeviceFacts` go there."""
    names = set(DeviceFacts.__dataclass_fields__)
    device = DeviceFacts(
        kind="cuda",
        index=number,
        name="NVIDIA A100",
        total_bytes=80 * GIB,
        free_bytes=79 * GIB,
        cores=8,
        driver="580.1",
        capability=(8, 0),
    )
    device = replace(device, **{n: v for n, v in fields.items() if n in names})
    state = GpuState(device=device, used_bytes=600 * MIB, persistent=True, ecc_errors=0)
    return replace(state, **{n: v for n, v in fields.items() if n not in names})


def driver(*gpus: GpuState, **fields: Any) -> DriverState:
    """A driver with one GPU, or with these."""
    shown = gpus or (gpu(),)
    state = DriverState(on_bus=len(shown), version="580.1", cuda=(13, 0), gpus=shown)
    return replace(state, **fields)


NO_DRIVER = DriverState()

TORCH = TorchFacts(
    version="2.13.0+cu130",
    cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
    nccl="2.28.9",
    trials={"0": ""},
)
CPU_TORCH = TorchFacts(version="2.13.0+cpu")
IMPORTS = ImportReply(problems={"torch": "", "trl": ""}, torch=TORCH)
DISK = Disk(
    use="temporary files",
    folder=Path("/tmp"),
    variable="TMPDIR",
    free_bytes=100 * GIB,
    writable=True,
)
HOST = HostState(
    machine_bytes=64 * GIB,
    limit_bytes=None,
    free_bytes=60 * GIB,
    memory_kills=0,
    shared_bytes=32 * GIB,
    shared_free_bytes=32 * GIB,
    locked_bytes=None,
    cores=8,
    machine_cores=8,
    waiting=0.0,
    busiest=(),
    ports=(True, True),
    infiniband=True,
    nvme=("nvme0n1",),
    libaio=True,
    disks=(DISK,),
)
MACHINE = Machine(
    driver=driver(),
    visible=(0,),
    environment={},
    imports=IMPORTS,
    requirements=[Requirement("torch>=2.8")],
    installed={"torch": "2.13.0+cu130"},
    absent=(),
    missing={},
    tools={"ninja": True},
    locks=(),
    host=HOST,
)


def states(findings: Any) -> list[str]:
    """The states of findings, each of which says what it has to."""
    return [check_whole(finding).state for finding in findings]


def check_whole(finding: Finding) -> Finding:
    """A finding as a user can read it: something was found somewhere; a remedy of one line where
    something is wrong, and none where not."""
    assert finding.name and finding.found and finding.source
    assert bool(finding.remedy) == (finding.state != "ok"), finding
    assert "\n" not in finding.found + finding.remedy + finding.source
    return finding
