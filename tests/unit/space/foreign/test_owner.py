"""Files of other tools are recognised whole, read as jobs, or refused with what to do."""

import json
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.space.foreign.fields import Imported
from autotune.space.foreign.tool import part_of, tool_of
from autotune.space.job_file.load import load_job
from tests.unit.space.foreign.files import (
    ACCELERATE,
    AXOLOTL,
    DEEPSPEED,
    LLAMA_FACTORY,
    TORCHTUNE,
    TRL,
    UNSLOTH,
    read,
)

QLORA = """
model_name_or_path: org/model
load_in_4bit: true
max_seq_length: 1024
per_device_train_batch_size: 2
use_peft: true
"""
SMALL = (
    """{"bf16": {"enabled": true}, "fp16": {"enabled": false}, "zero_optimization": {"stage": 2}}"""
)
CONFIG = json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, indent=2)


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (AXOLOTL, "Axolotl"),
        (LLAMA_FACTORY, "LLaMA-Factory"),
        (TORCHTUNE, "torchtune"),
        (TRL, "TRL or TrainingArguments"),
        (UNSLOTH, "Unsloth"),
        ("learning_rate: 1e-4\nbf16: true\n", "TRL or TrainingArguments"),
        (QLORA, "TRL or TrainingArguments"),
        (f"{QLORA}num_processes: 4\nmixed_precision: bf16\n", "TRL or TrainingArguments"),
        (QLORA.replace("model_name_or_path", "model_name"), "Unsloth"),
    ],
)
def test_another_tools_training_is_recognised(text: str, tool: str) -> None:
    found = tool_of(read(text))
    assert found is not None
    assert (found.name, part_of(read(text))) == (tool, None)


@pytest.mark.parametrize(
    ("text", "tool", "next_step"),
    [
        (DEEPSPEED, "DeepSpeed", "`autotune import trainer.yaml theirs.yaml`"),
        (SMALL, "DeepSpeed", "`autotune import trainer.yaml theirs.yaml`"),
        (ACCELERATE, "accelerate", "`autotune import trainer.yaml theirs.yaml`"),
        (CONFIG, "a transformers model", "`model: ./theirs.yaml`"),
    ],
)
def test_what_makes_no_job_alone_is_refused_with_what_to_do(
    tmp_path: Path, text: str, tool: str, next_step: str
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    (problem,) = caught.value.problems
    assert problem.what == f"a configuration of {tool}, not a job"
    assert next_step in str(problem.hint)


def test_a_job_with_fields_in_the_wrong_place_is_still_a_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("tuning: lora\nlearning_rate: 1e-4\nbf16: true\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file, ["model=org/name", "dataset=org/rows"])
    hints = [problem.hint for problem in caught.value.problems]
    assert hints == ["write `training: {learning_rate: 0.0001}`", "write `precision: bf16`"]


def test_a_job_is_loaded_from_another_tools_file_and_flags_count(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(LLAMA_FACTORY, encoding="utf-8")
    told: list[Imported] = []
    job, _ = load_job(file, ["devices.count=4", "learning_rate=3e-4"], imported=told.append)
    assert (job.model, job.tuning) == ("meta-llama/Llama-3.1-8B-Instruct", "lora")
    assert (job.global_batch_size, job.devices.count) == (1 * 8 * 4, 4)
    assert job.training["learning_rate"] == 3e-4
    assert told[0].tool == "LLaMA-Factory"


def test_flags_go_before_the_devices_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(f"{TRL}num_processes: 8\nnum_machines: 2\n", encoding="utf-8")
    job, _ = load_job(file, ["devices.count=2"])
    assert (job.global_batch_size, job.devices.count, job.devices.nodes) == (16 * 4, 2, 2)
    job, _ = load_job(file, ["devices.nodes=4"])
    assert (job.global_batch_size, job.devices.count, job.devices.nodes) == (16 * 8, 2, 4)


def test_what_is_wrong_with_a_value_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    text = LLAMA_FACTORY.replace("cutoff_len: 2048", "cutoff_len: -1")
    file.write_text(text.replace("1.0e-4", "fast"), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    lines = text.splitlines()
    found = {problem.where: problem.what for problem in caught.value.problems}
    length = next(n for n, line in enumerate(lines, 1) if line.startswith("cutoff_len"))
    rate = next(n for n, line in enumerate(lines, 1) if line.startswith("learning_rate"))
    assert found[f"{file}:{length}"] == "`max_length`: must be above 0, but got `-1`"
    assert found[f"{file}:{rate}"] == "`learning_rate` must be a number, but got `fast`"


def test_a_batch_that_is_none_is_refused_not_rounded(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    text = LLAMA_FACTORY.replace("batch_size: 1", "batch_size: 1.5").replace("steps: 8", "steps: 0")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    assert [problem.what for problem in caught.value.problems] == [
        "`per_device_train_batch_size` must be a whole number above 0, but got `1.5`",
        "`gradient_accumulation_steps` must be a whole number above 0, but got `0`",
    ]
