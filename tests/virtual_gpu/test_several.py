"""Several devices: every way to spread a training over them, by the real NCCL process group."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.conftest import LLAMA, Bench, Sweep, open_bench
from tests.cpu.conftest import server as server  # of all tests here
from tests.guards import some_of
from tests.virtual_gpu.test_runs import AMPERE, write_job

pytestmark = pytest.mark.skipif(
    int(os.environ["VIRTUAL_GPU_DEVICES"]) < 4, reason="wants --devices 4"
)

WIDE = {**LLAMA, "hidden_size": 512, "intermediate_size": 2048, "vocab_size": 8000}
"""Its states, of 16 bytes a weight, outweigh activations and the granules of the allocator."""
ZERO = {"distributed_type": "DEEPSPEED"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_GPU"},
    "ZeRO-1": {**ZERO, "zero_stage": 1},
    "ZeRO-2": {**ZERO, "zero_stage": 2},
    "ZeRO-3": {**ZERO, "zero_stage": 3},
    "FSDP2": {"distributed_type": "FSDP"},
}
FIXED = {
    "attn_implementation": "sdpa",
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "optim": "adamw_torch_fused",
    "per_device_train_batch_size": 2,
    "offload_optimizer_device": "none",
    "activation_offloading": False,
    "expandable_segments": False,
    "dataloader_num_workers": 0,
}


@pytest.fixture(scope="module")
def measured(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    bench = open_several(server, tmp_path_factory.mktemp("two"), 2, "bf16")
    return Sweep(lambda name: bench.probe(name, **FIXED, **STRATEGIES[name]))


def open_several(server: Any, folder: Path, count: int, precision: str) -> Bench:
    lengths = "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 100}}"
    sets = [f"global_batch_size={2 * count}", f"devices.count={count}", f"precision={precision}"]
    return open_bench(folder, server, WIDE, [lengths, "max_length=32", "devices.kind=cuda", *sets])


@pytest.mark.parametrize("name", some_of(STRATEGIES, {"FSDP2"}, "virtual_gpu"))
def test_what_was_asked_for_ran_on_both_devices(measured: Sweep, name: str) -> None:
    found = measured[name]
    assert found.outcome == "ok", (found.reason, found.failure)
    assert found.engine == name
    assert [rank["rank"] for rank in found.ranks] == [0, 1]
    peaks = [rank["peak_memory_bytes"] for rank in found.ranks]
    assert found.peak_memory_bytes == max(peaks)
    assert found.reserved_peak_bytes is not None
    assert max(peaks) - found.reserved_peak_bytes == 520 * 2**20, "one context, on its own device"


@pytest.mark.nightly("virtual_gpu")
def test_what_is_sharded_takes_less_of_each_device(measured: Sweep) -> None:
    allocated = {name: measured[name].allocated_peak_bytes or 0 for name in STRATEGIES}
    assert allocated["FSDP2"] < 0.8 * allocated["DDP"]
    assert allocated["ZeRO-3"] < 0.8 * allocated["DDP"]


@pytest.mark.nightly("virtual_gpu")
def test_four_devices_train_in_fp16(server: Any, tmp_path: Path) -> None:
    bench = open_several(server, tmp_path, 4, "fp16")
    found = bench.probe("four", **FIXED, **STRATEGIES["ZeRO-3"])
    assert found.outcome == "ok", (found.reason, found.failure)
    assert found.engine == "ZeRO-3"
    assert len({rank["peak_memory_bytes"] for rank in found.ranks}) <= 2
    assert [rank["rank"] for rank in found.ranks] == [0, 1, 2, 3]


OFFLOADED = {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
FOUR_BITS = {"dtype": "bfloat16"}
BUNDLES: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    "ZeRO-2": ("reward", "pairs", 2, "bf16", STRATEGIES["ZeRO-2"]),
    "FSDP2": ("sft", "data", 2, "bf16", STRATEGIES["FSDP2"]),
    "FSDP2, four bits": ("sft", "data", 2, "bf16", {**STRATEGIES["FSDP2"], **FOUR_BITS}),
    "ZeRO-3, four bits": ("sft", "data", 2, "bf16", {**STRATEGIES["ZeRO-3"], **FOUR_BITS}),
    "ZeRO-3, optimizer on cpu, weights on cpu": (
        "sft",
        "data",
        1,
        "fp16",
        {**STRATEGIES["ZeRO-3"], **OFFLOADED},
    ),
}
"""Method, dataset, devices, precision and knobs of each."""


@pytest.mark.nightly("virtual_gpu")
@pytest.mark.parametrize("name", BUNDLES)
def test_a_job_for_an_engine_becomes_a_verified_bundle(
    name: str, virtual_gpu: Any, tmp_path: Path
) -> None:
    """accelerate's launch of a bundle with its evaluation."""
    method, dataset, count, precision, knobs = BUNDLES[name]
    chosen = {**FIXED, **knobs}
    if method != "sft":
        del chosen["loss_type"]
    fields = {
        "tuning": "qlora" if "four bits" in name else "full",
        "precision": precision,
        "global_batch_size": 2 * count,
        "max_length": 32,
        "devices": {"count": count},
        "budget": {"probes": 1, "minutes": 5},
        "fixed": chosen,
    }
    write_job(tmp_path, method, dataset, fields)
    gpus = virtual_gpu(AMPERE, devices=count)
    result = gpus.autotune("run", "job.yaml", "--out", "run", expect=None)
    assert result["outcome"] == "recommended", result
    verification = result["verification"]
    assert verification["evaluated"] and verification["saved"], verification
    assert verification["verified"] or (
        verification["only_too_slow"] or verification["only_too_fast"]
    ), verification
    assert result["measurement"]["engine"] == name.removesuffix(", four bits")
    if "zero_stage" in knobs:
        file = tmp_path / "run" / "bundle" / "deepspeed.json"
        written = json.loads(file.read_text(encoding="utf-8"))
        assert written[precision]["enabled"]
        assert written["zero_optimization"]["stage"] == knobs["zero_stage"]
