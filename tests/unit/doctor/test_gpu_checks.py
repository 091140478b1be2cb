"""NVIDIA's driver and GPUs, judged by what NVML and torch told."""

from dataclasses import replace

import pytest

from autotune.doctor import gpu_checks
from autotune.facts.devices import DeviceProcess
from tests.unit.doctor.machines import (
    CPU_TORCH,
    GIB,
    NO_DRIVER,
    TORCH,
    check_whole,
    driver,
    gpu,
    states,
)

HOLDER = DeviceProcess(pid=7, used_bytes=3 * GIB, name="/bin/other")


def test_a_gpu_without_a_driver_fails_and_none_at_all_is_a_machine_with_a_cpu():
    bare = check_whole(gpu_checks.check_driver(replace(NO_DRIVER, on_bus=2)))
    assert (bare.state, "PCI bus: 2" in bare.found) == ("fail", True)
    lost = replace(driver(), gpus=(), problem="NVML cannot read GPU 1: GPU is lost")
    assert check_whole(gpu_checks.check_driver(lost)).state == "fail"
    none = check_whole(gpu_checks.check_driver(NO_DRIVER))
    assert (none.state, "on the CPU" in none.found) == ("ok", True)
    good = check_whole(gpu_checks.check_driver(driver()))
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
    (found,) = gpu_checks.check_visible(two, visible, environment)
    assert check_whole(found).state == state
    assert setting is None or f"CUDA_VISIBLE_DEVICES={setting}" in found.found
    assert not list(gpu_checks.check_visible(NO_DRIVER, (), environment))


def test_gpus_of_different_models_want_one_order():
    mixed = driver(gpu(0), gpu(1, name="NVIDIA T4"))
    assert states(gpu_checks.check_visible(mixed, (0, 1), {})) == ["ok", "warn"]
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert states(gpu_checks.check_visible(mixed, (0, 1), ordered)) == ["ok"]


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
    found = gpu_checks.check_build(driver(cuda=driver_cuda), built)
    assert check_whole(found).state == state
    assert (state == "fail") == ("update NVIDIA's driver" in found.remedy)
    # NVIDIA's package of forward compatibility: what computes is not too old.
    assert gpu_checks.check_build(driver(cuda=driver_cuda), replace(TORCH, cuda=cuda)).state == "ok"


def test_a_build_without_cuda_fails_beside_a_gpu_alone():
    assert gpu_checks.check_build(NO_DRIVER, CPU_TORCH).state == "ok"
    beside = check_whole(gpu_checks.check_build(driver(), CPU_TORCH))
    assert beside.state == "fail"
    assert beside.found == (
        "torch 2.13.0+cpu is built for the CPU, and this machine has NVIDIA's GPUs: 1"
    )
    assert beside.remedy.startswith("pip install --force-reinstall torch==2.13.0  (")
    rocm = replace(CPU_TORCH, hip="7.0")
    assert gpu_checks.check_build(NO_DRIVER, rocm).state == "ok"
    assert "ROCm 7.0" in check_whole(gpu_checks.check_build(driver(), rocm)).found


@pytest.mark.parametrize(
    ("capability", "architectures", "served"),
    [
        ((8, 0), ["sm_80"], True),
        ((8, 9), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((7, 0), ["sm_75", "sm_80", "compute_120"], False),
        ((12, 0), ["sm_90", "sm_120"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((8, 0), [], False),
    ],
)
def test_kernels_serve_their_generation_and_ptx_all_later_ones(capability, architectures, served):
    assert gpu_checks.has_kernels(capability, architectures) is served


def test_each_gpu_is_told_by_what_was_computed_on_it():
    old, busy, good, broken = gpu(0, capability=(7, 0)), gpu(1), gpu(2), gpu(3)
    torch = replace(TORCH, trials={"2": "", "3": "RuntimeError: no kernel image"})
    found = list(gpu_checks.check_kernels(driver(old, busy, good, broken), torch, (0, 1, 2, 3)))
    assert states(found) == ["fail", "unknown", "ok", "fail"]
    assert "has compute capability 7.0, and torch 2.13.0+cu130 has kernels for sm_75" in (
        found[0].found
    )
    assert "no kernel image" in found[3].found
    turned = replace(TORCH, trials={"0": "it is broken", "1": ""})
    assert states(gpu_checks.check_kernels(driver(gpu(0), gpu(1)), turned, (1, 0))) == [
        "fail",
        "ok",
    ]


def test_others_on_a_gpu_are_named():
    used = gpu(0, processes=(HOLDER,), used_bytes=4 * GIB)
    nameless = gpu(1, used_bytes=9 * GIB)
    found = list(gpu_checks.check_others(driver(used, nameless, gpu(2)), (0, 1, 2)))
    assert states(found) == ["warn", "warn"]
    assert found[0].found == "GPU 0 is in use by pid 7 (/bin/other) holds 3 GiB"
    assert found[1].found == "GPU 1: 9 GiB are held by a process that NVML does not list"
    assert states(gpu_checks.check_others(driver(used, gpu(1)), (0,))) == ["fail"]
    assert states(gpu_checks.check_others(driver(used, gpu(1)), (1,))) == ["ok"]
    assert not list(gpu_checks.check_others(NO_DRIVER, ()))


def test_a_sick_gpu_is_told():
    ill = gpu(0, ecc_errors=3, slowed=("it is too hot",))
    found = list(gpu_checks.check_health(driver(ill), (0,)))
    assert states(found) == ["warn", "warn"]
    assert found[0].found.endswith("could not be corrected: 3")
    assert found[1].found == "lower clocks: it is too hot"
    waits = gpu(0, ecc_errors=3, awaits_reset=True, persistent=False)
    found = list(gpu_checks.check_health(driver(waits), (0,)))
    assert [finding.name for finding in found] == ["health of GPU 0", "persistence mode"]
    silent = gpu(0, ecc_errors=None, awaits_reset=None, persistent=None)
    assert not list(gpu_checks.check_health(driver(silent), (0,)))


def test_several_gpus_want_nccl_and_its_fast_ways():
    assert not list(gpu_checks.check_nccl(TORCH, (0,), {}))
    assert states(gpu_checks.check_nccl(TORCH, (0, 1), {"NCCL_P2P_DISABLE": "0"})) == ["ok"]
    assert states(gpu_checks.check_nccl(replace(TORCH, nccl=None), (0, 1), {})) == ["fail"]
    (slow,) = gpu_checks.check_nccl(TORCH, (0, 1), {"NCCL_P2P_DISABLE": "1"})
    assert check_whole(slow).remedy == "unset NCCL_P2P_DISABLE"
