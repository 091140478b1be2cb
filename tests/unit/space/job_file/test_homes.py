"""Fields that people know from other files are answered with the line to write."""

import pytest

from autotune.errors import UserError
from tests.unit.loading import problems

JOB = "global_batch_size: 8\n"


@pytest.fixture(autouse=True)
def _model_and_data(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "d").mkdir()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("bf16: true", "write `precision: bf16`"),
        ("fp16: true", "write `precision: fp16`"),
        ("bf16: false", "leave it out"),
        ("learning_rate: 2e-4", "write `training: {learning_rate: 0.0002}`"),
        ("learning_rate: scaled", "write `learning_rate_scaling: by_batch`"),
        ("lr: 2e-4", "write `training: {learning_rate: 0.0002}`"),
        ("num_train_epochs: 3", "write `training: {num_train_epochs: 3}`"),
        ("epochs: 3", "write `training: {num_train_epochs: 3}`"),
        ("weight_decay: 0.1", "write `training: {weight_decay: 0.1}`"),
        ("lr_scheduler_type: cosine", "write `training: {lr_scheduler_type: cosine}`"),
        ("output_dir: out", "write `training: {output_dir: out}`"),
        ("report_to: none", "write `training: {report_to: none}`"),
        ("seed: 1", "write `training: {seed: 1}`"),
        ("max_seq_length: 512", "write `max_length: 512`"),
        ("sequence_len: 512", "write `max_length: 512`"),
        ("batch_size: 64", "write `global_batch_size: 64`"),
        ("micro_batch_size: 2", "write `fixed: {per_device_train_batch_size: 2}`"),
        ("gradient_accumulation_steps: 4", "it follows from `global_batch_size`"),
        ("gradient_checkpointing: true", "`fixed: {gradient_checkpointing: true}` pins it"),
        ("per_device_train_batch_size: 4", "`fixed: {per_device_train_batch_size: 4}` pins it"),
        ("optim: adamw_torch", "`fixed: {optim: adamw_torch}` pins it"),
        ("lora_r: 16", "write `recipe: {lora_r: [16]}`"),
        ("packing: true", "write `recipe: {packing: [true]}`"),
        ("load_in_4bit: true", "write `tuning: qlora`"),
        ("use_peft: true", "write `tuning: lora`"),
        ("adapter: lora", "write `tuning: lora`"),
        ("num_gpus: 8", "write `devices: {count: 8}`"),
        ("deepspeed: ds.json", "`fixed: {distributed_type: DEEPSPEED, zero_stage: 3}` pins it"),
        ("model_name_or_path: a/b", "write `model: a/b`"),
    ],
)
def test_a_field_from_elsewhere_is_answered_with_the_line_to_write(tmp_path, line, hint):
    found = problems(tmp_path, JOB + line + "\n")
    assert len(found) == 1
    assert hint in found[0][2]


def test_what_nobody_knows_gets_the_nearest_name(tmp_path):
    ((_, what, hint),) = problems(tmp_path, JOB + "budgett: 3\n")
    assert "unknown field `budgett`" in what and "did you mean `budget`?" in hint


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("base_model: a/b\ndatasets:\n- path: x\nadapter: lora\n", "Axolotl"),
        ("model_name_or_path: a\nstage: sft\ntemplate: qwen\n", "LLaMA-Factory"),
        ("model_name_or_path: a\noutput_dir: out\n", "TRL or TrainingArguments"),
    ],
)
def test_another_tools_file_is_recognised_and_named(tmp_path, text, tool):
    from autotune.space.job_file.load import load_job

    file = tmp_path / "theirs.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    (problem,) = caught.value.problems
    assert problem.what == f"a configuration of {tool}, not a job"
    assert "docs/job.md" in problem.hint
