"""Configurations of other tools, planned as they are.

`reports/` has the settings of LLaMA-Factory's users who ran out of memory (its issues 6531, 7490
and 5077), as they wrote them; of 1221, which has no file, as they are told there.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.conftest import Command

REPORTS = Path(__file__).parent / "reports"
LONG = pytest.mark.nightly("documents")
SMALL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
finetuning_type: lora
template: qwen
cutoff_len: 256
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
bf16: true
tf32: true
bf16_full_eval: true
ddp_backend: nccl
"""
"""The last three ask for more than this machine has, which is not the one that is planned for."""


def planned(autotune: Command, file: Path, *flags: str, expect: int = 0) -> Any:
    return json.loads(autotune("plan", str(file), *flags, "--json", expect=expect))


def imported(autotune: Command, issue: int, devices: int, folder: Path) -> Path:
    job = folder / "job.yaml"
    report = str(REPORTS / f"{issue}.yaml")
    autotune("import", report, "--as-is", "--devices", str(devices), "--out", str(job))
    return job


def test_a_file_of_another_tool_is_planned_with_its_global_batch(
    autotune: Command, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(SMALL, encoding="utf-8")
    pins = [f"--set={pin}" for pin in ("use_liger_kernel=false", "padding_free=false")]
    plan = planned(autotune, file, "--device", "rtx-4090", *pins)
    batches = {
        row["knobs"]["per_device_train_batch_size"] * row["knobs"]["gradient_accumulation_steps"]
        for row in plan["candidates"]
    }
    assert batches == {2 * 2}


def test_as_it_is_there_is_one_candidate(autotune: Command, tmp_path: Path) -> None:
    file, job = tmp_path / "theirs.yaml", tmp_path / "job.yaml"
    file.write_text(SMALL, encoding="utf-8")
    autotune("import", str(file), "--as-is", "--out", str(job))
    (row,) = planned(autotune, job, "--device", "rtx-4090")["candidates"]
    knobs = row["knobs"]
    assert (knobs["per_device_train_batch_size"], knobs["gradient_accumulation_steps"]) == (2, 2)
    assert row["fits"] is True


@LONG
def test_report_6531_one_row_fits_and_two_do_not(autotune: Command, tmp_path: Path) -> None:
    job = imported(autotune, 6531, 4, tmp_path)
    (one,) = planned(autotune, job, "--device", "l20")["candidates"]
    assert one["fits"] is True
    pin = "--set=per_device_train_batch_size=2"
    (two,) = planned(autotune, job, pin, "--device", "l20", expect=1)["candidates"]
    assert two["fits"] is False


def test_report_5077_asks_for_a_kernel_that_its_gpu_lacks(
    autotune: Command, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    flags = ("--as-is", "--devices", "2", "--model", "llama-3.1-8b", "--out", str(job))
    autotune("import", str(REPORTS / "5077.yaml"), *flags)
    autotune("plan", str(job), "--device", "t4", expect=2)


@LONG
def test_report_1221_runs_out_in_adams_step_with_zero_2_and_trains_with_zero_3(
    autotune: Command,
) -> None:
    """What happened there: 3.14 GiB more for the root of `exp_avg_sq`, and "stage 3 runs"."""
    job = REPORTS / "1221" / "job.yaml"
    plan = planned(autotune, job, "--device", "v100-32gb", expect=1)
    (row,) = plan["candidates"]
    peak = row["estimate"]["peak_phase"], row["estimate"]["peak_operator"]
    assert (row["fits"], peak) == (False, ("step", "aten::_foreach_sqrt"))
    first = plan["advice"]["ways"][0]["changes"]
    assert "ZeRO-3" in str(first)
    pin = "--set=zero_stage=3"
    (row,) = planned(autotune, job, pin, "--device", "v100-32gb")["candidates"]
    assert row["fits"] is True
