"""Files of other tools are recognised whole, and named."""

import json
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.space.job_file.load import load_job

TORCHTUNE = """model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
dataset:
  _component_: torchtune.datasets.alpaca_dataset
device: cuda
"""
DEEPSPEED = json.dumps(
    {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_batch_size": "auto"}
)
CONFIG = json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, indent=2)


@pytest.mark.parametrize(
    ("text", "tool", "next_step"),
    [
        ("base_model: a/b\ndatasets:\n- path: x\nadapter: lora\n", "Axolotl", "docs/job.md"),
        ("model_name_or_path: a\nstage: sft\ntemplate: qwen\n", "LLaMA-Factory", "docs/job.md"),
        (TORCHTUNE, "torchtune", "write a job"),
        (DEEPSPEED, "DeepSpeed", "`devices: {count: 8}`"),
        ("distributed_type: FSDP\nmixed_precision: bf16\n", "accelerate", "`autotune check "),
        (CONFIG, "a transformers model", "`model: ./theirs.yaml`"),
        ("model_name_or_path: a\noutput_dir: out\n", "TRL or TrainingArguments", "docs/job.md"),
        ("learning_rate: 1e-4\nbf16: true\n", "TRL or TrainingArguments", "its `training:`"),
        (
            "per_device_train_batch_size: 4\nnum_train_epochs: 3\n",
            "TRL or TrainingArguments",
            "`autotune init` asks",
        ),
    ],
)
def test_another_tools_file_is_recognised_and_named(
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
