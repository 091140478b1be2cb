"""Out-of-memory reports of LLaMA-Factory's users: their files, read as they are."""

from pathlib import Path
from typing import Any

import pytest

from autotune.job.yaml_file import parse_yaml
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from autotune.space.job_file.load import judge

REPORTS = Path(__file__).parents[3] / "cpu" / "reports"


def as_is(issue: int, devices: int) -> dict[str, Any]:
    file = REPORTS / f"{issue}.yaml"
    given = GivenFile(name=file.name, data=parse_yaml(file.read_text(encoding="utf-8"), "it")[0])
    found = import_job([given], Wishes(devices=devices, as_is=True))
    judge(found.job, file.name, REPORTS)
    assert not [fate for fate in found.fates if fate.kind == "unknown"]
    return found.job


@pytest.mark.parametrize(
    ("issue", "devices", "batch", "length"),
    [(6531, 4, 1 * 8 * 4, 15000), (7490, 8, 4 * 1 * 8, 16384), (5077, 2, 1 * 8 * 2, 4096)],
)
def test_rows_of_a_step_and_their_length(issue: int, devices: int, batch: int, length: int) -> None:
    job = as_is(issue, devices)
    assert (job["global_batch_size"], job["max_length"]) == (batch, length)
    assert job["fixed"]["gradient_checkpointing"] is True  # LLaMA-Factory's default


def test_a_model_in_a_folder_of_theirs_is_known_by_its_name() -> None:
    assert as_is(6531, 4)["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert as_is(7490, 8)["model"] == "Qwen/Qwen2.5-1.5B-Instruct"


def test_adapters_beside_a_whole_model_in_bfloat16() -> None:
    job = as_is(6531, 4)
    assert (job["tuning"], job["fixed"]["dtype"]) == ("lora", "bfloat16")
    assert (job["fixed"]["distributed_type"], job["fixed"]["zero_stage"]) == ("DEEPSPEED", 3)
    assert job["fixed"]["loss_type"] == "nll"  # which holds all logits


def test_all_weights_in_float32_with_ligers_kernels() -> None:
    job = as_is(7490, 8)
    assert (job["tuning"], job["precision"]) == ("full", "bf16")
    assert "dtype" not in job["fixed"]
    assert job["fixed"]["use_liger_kernel"] is True
    assert job["fixed"]["attn_implementation"] == "flash_attention_2"


def test_a_reward_model_on_a_quantised_base() -> None:
    job = as_is(5077, 2)
    assert (job["method"], job["tuning"], job["precision"]) == ("reward", "qlora", "fp16")
    assert job["fixed"]["dtype"] == "float16"
    assert job["fixed"]["distributed_type"] == "MULTI_GPU"
    assert job["training"]["use_rslora"] is True
