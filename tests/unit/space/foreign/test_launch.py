"""The global batch is kept, whoever says how many devices there are; what shares is searched."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.space.job_file.load import judge
from tests.unit.space.foreign.files import (
    ACCELERATE,
    AXOLOTL,
    DEEPSPEED,
    LLAMA_FACTORY,
    TRL,
    changed,
    fates,
    imported,
)

COUNTS = st.integers(min_value=1, max_value=64)


@given(micro=COUNTS, steps=COUNTS, machines=st.integers(1, 4), each=st.integers(1, 8))
def test_the_global_batch_is_always_the_product(
    micro: int, steps: int, machines: int, each: int
) -> None:
    lines = [f"per_device_train_batch_size: {micro}", f"gradient_accumulation_steps: {steps}"]
    without = [line.partition(":")[0] for line in lines]
    text = changed(LLAMA_FACTORY, lines, without=without)
    launch = f"distributed_type: MULTI_GPU\nnum_machines: {machines}\n"
    job = imported(text, f"{launch}num_processes: {machines * each}\n").job
    assert job["global_batch_size"] == micro * steps * machines * each
    assert job["devices"]["count"] == each
    assert job["devices"].get("nodes", 1) == machines


def test_one_device_is_assumed_and_said() -> None:
    found = imported(LLAMA_FACTORY)
    assert found.job["global_batch_size"] == 8
    assert any(text.startswith("devices: 1 ") for text in found.assumed)
    assert imported(LLAMA_FACTORY, devices=4).job["global_batch_size"] == 32


def test_accelerates_file_beside_the_trainers() -> None:
    found = imported(LLAMA_FACTORY, ACCELERATE)
    assert found.job["devices"] == {"count": 8}
    assert found.job["global_batch_size"] == 64
    assert not {"distributed_type", "zero_stage"} & found.job["fixed"].keys()
    assert "accelerate: deepspeed_config.zero_stage" in fates(found, "searched")
    pinned = imported(LLAMA_FACTORY, ACCELERATE, as_is=True).job["fixed"]
    assert pinned["expandable_segments"] is False
    assert (pinned["distributed_type"], pinned["zero_stage"]) == ("DEEPSPEED", 3)
    assert pinned["per_device_train_batch_size"] == 1


@pytest.mark.parametrize("kind", ["NO", "'NO'"])
def test_accelerate_starts_one_process_where_it_is_told_of_no_way_to_share(kind: str) -> None:
    file = f"distributed_type: {kind}\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 0\n"
    found = imported(LLAMA_FACTORY, file)
    assert found.job["global_batch_size"] == 8
    assert "devices" not in found.job
    why = "nothing (accelerate starts one process: `distributed_type: NO`)"
    told = {fate.field: fate.detail for fate in found.fates if fate.kind == "left"}
    assert told["accelerate: num_processes"] == told["accelerate: num_machines"] == why
    assert imported(LLAMA_FACTORY, file.replace("8", "1").replace("2", "1")).job["devices"] == {
        "count": 1
    }
    assert imported(LLAMA_FACTORY, file, devices=16).job["global_batch_size"] == 128
    by_mpi = f"{file}mpirun_config: {{mpirun_hostfile: hosts}}\n"
    assert imported(LLAMA_FACTORY, by_mpi).job["global_batch_size"] == 64


def test_deepspeeds_file_beside_the_trainers() -> None:
    found = imported(TRL, DEEPSPEED)
    assert found.job["global_batch_size"] == 16
    # On one device the search offloads by request only.
    assert found.job["recipe"] == {"offload_optimizer_device": ["none", "cpu"]}
    pinned = imported(TRL, DEEPSPEED, as_is=True).job["fixed"]
    assert pinned["zero_stage"] == 2
    assert pinned["offload_optimizer_device"] == "cpu"


def test_deepspeeds_own_numbers_must_agree() -> None:
    data: dict[str, Any] = {"zero_optimization": {"stage": 3}, "train_batch_size": 64}
    found = imported(TRL, json.dumps({**data, "train_micro_batch_size_per_gpu": 2}))
    assert found.job["global_batch_size"] == 64
    assert found.job["devices"]["count"] == 4  # 64 / (2 x 8)
    with pytest.raises(UserError, match="and DeepSpeed's file says 4"):
        imported(TRL, json.dumps({**data, "train_micro_batch_size_per_gpu": 4}))
    with pytest.raises(UserError, match="`train_batch_size: 64` contradicts 2 x 8 x 2 = 32"):
        imported(TRL, json.dumps(data), devices=2)


def test_a_deepspeed_file_that_is_only_named_is_searched_or_known_by_its_name() -> None:
    text = changed(LLAMA_FACTORY, ["deepspeed: examples/deepspeed/ds_z3_offload_config.json"])
    found = imported(text, devices=4)
    assert "deepspeed" in fates(found, "searched")
    assert "zero_stage" not in found.job["fixed"]
    as_is = imported(text, devices=4, as_is=True)
    assert as_is.job["fixed"]["zero_stage"] == 3
    assert as_is.job["fixed"]["offload_param_device"] == "cpu"
    named = [text for text in as_is.assumed if "by the name of" in text]
    names = ("zero_stage: 3", "offload_optimizer_device: cpu", "offload_param_device: cpu")
    assert [text.partition(" (")[0] for text in named] == [f"fixed.{name}" for name in names]
    for job in (found.job, as_is.job):
        assert judge(job, "theirs.yaml", Path("/")).global_batch_size == 32


def test_fsdp_as_it_is() -> None:
    launch = (
        "distributed_type: FSDP\nnum_processes: 2\n"
        "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"
    )
    fixed = imported(TRL, launch, as_is=True).job["fixed"]
    assert fixed["distributed_type"] == "FSDP"
    assert fixed["fsdp_reshard_after_forward"] is False


@pytest.mark.parametrize(
    ("value", "reshards"),
    [
        ("FULL_SHARD", True),
        ("HYBRID_SHARD", True),
        ("1", True),
        ("true", True),
        ("SHARD_GRAD_OP", False),
        ("false", False),
        ("2", False),
    ],
)
@pytest.mark.parametrize("name", ["fsdp_reshard_after_forward", "fsdp_sharding_strategy"])
def test_strategies_of_fsdp_are_a_switch(name: str, value: str, reshards: bool) -> None:
    launch = f"distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {{{name}: {value}}}\n"
    fixed = imported(TRL, launch, as_is=True).job["fixed"]
    assert fixed["fsdp_reshard_after_forward"] is reshards


ON_EIGHT = "distributed_type: MULTI_GPU\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("launch", "ways"),
    [
        ("parallelism_config: {parallelism_config_tp_size: 2}\n", 4),
        ("parallelism_config: {parallelism_config_cp_size: 4}\n", 2),
        ("parallelism_config: {parallelism_config_sp_size: 2, parallelism_config_tp_size: 2}\n", 2),
    ],
)
def test_devices_that_share_rows_divide_the_global_batch(launch: str, ways: int) -> None:
    text = TRL.replace("train_batch_size: 2", "train_batch_size: 4").replace("steps: 8", "steps: 2")
    found = imported(text, ON_EIGHT + launch)
    assert found.job["global_batch_size"] == 4 * 2 * ways
    assert found.job["devices"] == {"count": 8}
    data = {"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 8 // ways}}
    assert imported(text, json.dumps(data), devices=8).job["global_batch_size"] == 4 * 2 * ways


@pytest.mark.parametrize(("kind", "knob"), [("FSDP", "cp_size"), ("DEEPSPEED", "sp_size")])
def test_rows_that_processes_share_here_too_are_carried(kind: str, knob: str) -> None:
    share = f"parallelism_config: {{parallelism_config_{knob}: 4}}\n"
    found = imported(TRL, f"distributed_type: {kind}\nnum_processes: 8\n{share}")
    assert found.job["fixed"][knob] == 4
    assert found.job["global_batch_size"] == 2 * 8 * 2
    field = f"accelerate: parallelism_config.parallelism_config_{knob}"
    assert fates(found, "carried")[field] == f"fixed.{knob}"
    assert not any("not built" in text for text in found.assumed)


def test_rows_that_two_files_share_out_are_shared_out_once() -> None:
    launch = f"{ON_EIGHT}parallelism_config: {{parallelism_config_tp_size: 2}}\n"
    text = changed(AXOLOTL, ["tensor_parallel_size: 2"])
    assert imported(text, launch).job["global_batch_size"] == 2 * 2 * 4


def test_trls_yaml_has_settings_of_its_launcher() -> None:
    text = changed(TRL, ["num_processes: 4", "num_machines: 2", "mixed_precision: bf16"])
    found = imported(text)
    assert found.job["global_batch_size"] == 2 * 8 * 4
    assert found.job["devices"] == {"count": 2, "nodes": 2}
    assert found.job["precision"] == "bf16"
    assert not fates(found, "unknown")
    assert imported(text, devices=4).job["global_batch_size"] == 2 * 8 * 8


def test_processes_that_machines_cannot_share_are_refused() -> None:
    with pytest.raises(UserError, match="3 processes cannot be divided among 2 machines"):
        imported(TRL, "distributed_type: MULTI_GPU\nnum_processes: 3\nnum_machines: 2\n")


def test_two_trainers_are_refused() -> None:
    with pytest.raises(UserError, match="several files configure a training"):
        imported(TRL, LLAMA_FACTORY)
