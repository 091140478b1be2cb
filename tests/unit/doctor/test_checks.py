"""Machines, good and worse, judged by what was looked at; and disks of the real one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.doctor import checks
from autotune.doctor.checks import Disk, Finding, count
from autotune.doctor.examine import Machine, disk_of, judge, preflight
from autotune.doctor.import_worker import ImportReply, TorchFacts
from autotune.facts.devices import DeviceFacts, DeviceProcess, DriverState
from autotune.facts.stack import OPTIONAL

GIB = 2**30
MIB = 2**20
HOLDER = DeviceProcess(pid=7, used_bytes=3 * GIB, name="/bin/other")
NO_DRIVER = DriverState()
TORCH = TorchFacts(version="2.13.0+cu130", cuda="13.0", trials={"0": ""})
CPU_TORCH = TorchFacts(version="2.13.0+cpu")
IMPORTS = ImportReply(problems={"torch": "", "trl": ""}, torch=TORCH)
DISK = Disk(
    use="temporary files",
    folder=Path("/tmp"),
    variable="TMPDIR",
    free_bytes=100 * GIB,
    writable=True,
)


def gpu(number: int = 0, **fields: Any) -> DeviceFacts:
    """A GPU that nobody uses."""
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
    return replace(device, **fields)


def driver(*gpus: DeviceFacts, **fields: Any) -> DriverState:
    """A driver with one GPU, or with these."""
    shown = gpus or (gpu(),)
    state = DriverState(on_bus=len(shown), version="580.1", cuda=(13, 0), gpus=shown)
    return replace(state, **fields)


MACHINE = Machine(
    driver=driver(),
    visible=(0,),
    environment={},
    shared=(32 * GIB, 32 * GIB),
    disks=(DISK,),
    imports=IMPORTS,
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


def test_a_good_machine_has_no_findings_but_good_ones():
    found = list(judge(MACHINE))
    assert set(states(found)) == {"ok"}
    assert len(found) == 8


def test_a_machine_without_gpus_is_judged_by_the_rest():
    imports = replace(IMPORTS, torch=CPU_TORCH)
    plain = replace(MACHINE, driver=NO_DRIVER, visible=(), imports=imports)
    assert set(states(judge(plain))) == {"ok"}


def test_where_torch_cannot_be_imported_nothing_is_said_of_it_but_that():
    broken = replace(MACHINE, imports=ImportReply(problems={"torch": "OSError: no"}))
    found = list(judge(broken))
    assert count(found, "fail") == 1
    assert [f.name for f in found if f.state != "ok"] == ["imports"]
    assert not [f for f in found if f.name in ("torch and CUDA", "GPU 0")]


def test_a_slice_of_a_gpu_is_told_once():
    sliced = replace(
        MACHINE, visible=None, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}, absent=("flash-attn",)
    )
    assert [f.name for f in judge(sliced) if f.state != "ok"] == ["visible GPUs"]


def test_a_run_is_told_what_fails_and_nothing_else(monkeypatch):
    failing = replace(MACHINE, shared=(0, 64 * MIB), disks=[replace(DISK, free_bytes=2 * GIB)])
    monkeypatch.setattr("autotune.doctor.examine._glance", lambda: failing)
    assert [finding.name for finding in preflight()] == ["/dev/shm"]


def test_a_gpu_without_a_driver_fails_and_none_at_all_is_a_machine_with_a_cpu():
    bare = check_whole(checks.check_driver(replace(NO_DRIVER, on_bus=2)))
    assert (bare.state, "PCI bus: 2" in bare.found) == ("fail", True)
    lost = replace(driver(), gpus=(), problem="NVML cannot read GPU 1: GPU is lost")
    assert check_whole(checks.check_driver(lost)).state == "fail"
    none = check_whole(checks.check_driver(NO_DRIVER))
    assert (none.state, "on the CPU" in none.found) == ("ok", True)
    good = check_whole(checks.check_driver(driver()))
    assert good.found == "580.1, takes CUDA up to 13.0; 1 x NVIDIA A100"


@pytest.mark.parametrize(
    ("setting", "visible", "state"),
    [
        (None, (0, 1), "ok"),
        ("1", (1,), "ok"),
        ("", (), "fail"),
        ("-1", (), "fail"),
        ("0,7", (0,), "warn"),
        ("MIG-1", None, "fail"),
    ],
)
def test_what_is_hidden_is_told(setting, visible, state):
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    two = driver(gpu(0), gpu(1))
    (found,) = checks.check_visible(two, visible, environment)
    assert check_whole(found).state == state
    assert setting is None or f"CUDA_VISIBLE_DEVICES={setting}" in found.found
    assert not list(checks.check_visible(NO_DRIVER, (), environment))


@pytest.mark.parametrize(
    ("cuda", "driver_cuda", "state"),
    [
        ("13.0", (13, 0), "ok"),
        ("13.2", (13, 0), "ok"),
        ("12.8", (13, 0), "ok"),
        ("13.0", (12, 8), "fail"),
        ("13.0", None, "ok"),
    ],
)
def test_a_driver_takes_its_own_major_version_of_cuda_and_older_ones(cuda, driver_cuda, state):
    built = replace(TORCH, cuda=cuda, trials={})
    found = checks.check_build(driver(cuda=driver_cuda), built)
    assert check_whole(found).state == state
    assert (state == "fail") == ("update NVIDIA's driver" in found.remedy)
    # NVIDIA's package of forward compatibility: what computes is not too old.
    assert checks.check_build(driver(cuda=driver_cuda), replace(TORCH, cuda=cuda)).state == "ok"


def test_a_build_without_cuda_fails_beside_a_gpu_alone():
    assert checks.check_build(NO_DRIVER, CPU_TORCH).state == "ok"
    beside = check_whole(checks.check_build(driver(), CPU_TORCH))
    assert beside.state == "fail"
    assert beside.found == (
        "torch 2.13.0+cpu is built for the CPU, and this machine has NVIDIA's GPUs: 1"
    )
    assert beside.remedy.startswith("pip install --force-reinstall torch==2.13.0  (")
    rocm = replace(CPU_TORCH, hip="7.0")
    assert checks.check_build(NO_DRIVER, rocm).state == "ok"
    assert "ROCm 7.0" in check_whole(checks.check_build(driver(), rocm)).found


def test_each_gpu_is_told_by_what_was_computed_on_it():
    torch = replace(TORCH, trials={"1": "", "2": "RuntimeError: no kernel image"})
    three = driver(gpu(0), gpu(1), gpu(2))
    found = list(checks.check_trials(three, torch, (0, 1, 2)))
    assert states(found) == ["unknown", "ok", "fail"]
    assert "no kernel image" in found[2].found
    turned = list(checks.check_trials(three, torch, (0, 2, 1)))
    assert [(f.name, f.state) for f in turned[1:]] == [("GPU 2", "ok"), ("GPU 1", "fail")]


def test_others_on_a_gpu_are_named():
    used = gpu(0, processes=(HOLDER,), free_bytes=76 * GIB)
    nameless = gpu(1, free_bytes=71 * GIB)
    found = list(checks.check_others(driver(used, nameless, gpu(2)), (0, 1, 2)))
    assert states(found) == ["warn", "warn"]
    assert found[0].found == "GPU 0 is in use by pid 7 (/bin/other) holds 3 GiB"
    assert found[1].found == "GPU 1: 9 GiB are held by a process that NVML does not list"
    assert states(checks.check_others(driver(used, gpu(1)), (0,))) == ["fail"]
    assert states(checks.check_others(driver(used, gpu(1)), (1,))) == ["ok"]
    assert not list(checks.check_others(NO_DRIVER, ()))


def test_a_torch_that_cannot_be_imported_is_one_finding():
    problem = "ImportError: libcudart.so.13: cannot open shared object file"
    (finding,) = checks.check_imports(ImportReply(problems={"torch": problem}))
    assert check_whole(finding).state == "fail"
    assert finding.found == f"`torch` cannot be imported: {problem}"


def test_a_broken_optional_package_may_be_removed():
    broken = replace(IMPORTS, problems={"torch": "", "flash_attn": "ImportError: undefined symbol"})
    (finding,) = checks.check_imports(broken)
    assert check_whole(finding).state == "fail"
    assert finding.remedy.endswith("or: pip uninstall flash-attn")


def test_a_child_that_ended_early_is_told_with_where():
    ended = replace(IMPORTS, ending="computing on GPU 0: SIGSEGV ended it")
    (finding,) = checks.check_imports(ended)
    assert check_whole(finding).state == "fail"
    assert "computing on GPU 0: SIGSEGV" in finding.found
    assert states(checks.check_imports(IMPORTS)) == ["ok"]


def test_packages_that_would_help_are_those_that_run_on_the_gpu():
    def named(absent, **fields):
        found = list(checks.check_helpful(absent, gpu(**fields)))
        assert set(states(found)) <= {"warn"}
        return [finding.found.partition(" ")[0] for finding in found]

    everything = list(OPTIONAL)
    assert named(everything) == ["kernels", "liger-kernel", "bitsandbytes"]
    assert named(everything, capability=(7, 5)) == ["liger-kernel", "bitsandbytes"]
    assert named(["flash-attn", "kernels"]) == ["kernels"]
    assert named(["kernels"]) == []  # the wheel is there
    assert not list(checks.check_helpful(everything, None))


@pytest.mark.parametrize(
    ("shared", "state"),
    [
        ((32 * GIB, 32 * GIB), "ok"),
        ((64 * MIB, 64 * MIB), "warn"),
        ((0, 64 * MIB), "fail"),
        (None, "warn"),
    ],
)
def test_shared_memory(shared, state):
    assert check_whole(checks.check_shared_memory(shared)).state == state


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "ok"),
        ({"free_bytes": 2 * GIB}, "warn"),
        ({"free_bytes": 0}, "fail"),
        ({"free_bytes": None}, "unknown"),
        ({"writable": False}, "fail"),
    ],
)
def test_disks(fields, state):
    (finding,) = checks.check_disks([replace(DISK, **fields)])
    assert check_whole(finding).state == state
    assert state == "ok" or "export TMPDIR=/path" in finding.remedy


def test_a_disk_is_judged_where_its_folder_would_be_made(tmp_path):
    disk = disk_of("cache", tmp_path / "no" / "such", "AUTOTUNE_CACHE")
    assert disk.writable and disk.free_bytes
    assert not disk_of("cache", Path("/proc/self/no"), "AUTOTUNE_CACHE").free_bytes


def test_the_machine_is_described_without_a_program_of_the_path(tmp_path, monkeypatch):
    """It may hang."""
    for name in ("uname", "gcc", "ldconfig", "lscpu"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho ran > '{tmp_path}/ran'\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    code = "from autotune.cli.doctor import _described; print(_described(()))"
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    shown = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PATH": path}, capture_output=True
    )
    assert shown.returncode == 0, shown.stderr
    assert not (tmp_path / "ran").exists()
