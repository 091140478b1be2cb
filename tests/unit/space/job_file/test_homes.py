"""Fields that people know from other files are answered with the line to write."""

import pytest

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
        ("deepspeed: ds.json", "`fixed: {distributed_type: DEEPSPEED, zero_stage: 2}` pins it"),
        ("model_name_or_path: a/b", "write `model: a/b`"),
        ("torch_dtype: torch.bfloat16", "write `recipe: {dtype: [bfloat16]}`"),
        ("torch_dtype: auto", "leave it out, or write `recipe: {dtype: [bfloat16]}`"),
        ("sample_packing: true", "write `recipe: {packing: [true]}`"),
        ("optimizer: adamw_8bit", "`fixed: {optim: adamw_8bit}` pins it"),
        ("lr_scheduler: cosine", "write `training: {lr_scheduler_type: cosine}`"),
        ("lora_rank: 16", "write `recipe: {lora_r: [16]}`"),
        ("flash_attention: true", "`fixed: {attn_implementation: flash_attention_2}` pins it"),
        ("flash_attention: false", "leave it out"),
        ("use_vllm: true", "it is for `method: grpo` and `method: rloo`"),
        ("beta: 0.1", "it is for `method: dpo` and `method: kto`"),
        ("device: cuda:0", "write `devices: {kind: cuda}`"),
        ("device: h200", "`autotune plan --device h200` says"),
        ("memory: 20GiB", "write `devices: {memory: 20GiB}`"),
        ("nnodes: 2", "write `devices: {nodes: 2}`"),
        ("devices: 20GiB", "write `devices: {memory: 20GiB}`"),
        ("devices: 2", "write `devices: {count: 2}`"),
        ("devices: gpu", "write `devices: {kind: cuda}`"),
        ("devices: null", "write `devices: {count: 2, memory: 20GiB}`"),
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
    ("field", "hint"),
    [
        ("bf16: true", "write `precision: bf16`"),
        ("bf16: false", "write `precision: fp32`"),
        ("use_cpu: true", "write `devices: {kind: cpu}`"),
        ("max_length: 512", "write `max_length: 512`"),
        ("model_name_or_path: a/b", "write `model: a/b`"),
        ("lr: 1e-4", "write `training: {learning_rate: 0.0001}`"),
        ("epochs: 3", "write `training: {num_train_epochs: 3}`"),
        ("warmup_ratio: 0.1", "write `training: {warmup_steps: 0.1}`"),
        ("micro_batch_size: 2", "write `fixed: {per_device_train_batch_size: 2}`"),
        ("learning_rat: 1", "did you mean `learning_rate`?"),
    ],
)
def test_so_is_one_among_the_training_fields(tmp_path, field, hint):
    ((where, _, told),) = problems(tmp_path, f"{JOB}training: {{{field}}}\n")
    assert where == "job:4"
    assert hint in told


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("bf16=true", "write `--set precision=bf16`"),
        ("training.bf16=true", "write `--set precision=bf16`"),
        ("warmup_ratio=0.1", "write `--set warmup_steps=0.1`"),
        ("lr=1e-4", "write `--set learning_rate=0.0001`"),
        ("epochs=3", "write `--set num_train_epochs=3`"),
        ("micro_batch_size=2", "write `--set per_device_train_batch_size=2`"),
        ("memory=20GiB", "write `--set devices.memory=20GiB`"),
        ("devices=20GiB", "write `--set devices.memory=20GiB`"),
        ("devices=null", "write `--set 'devices={count: 2, memory: 20GiB}'`"),
        ("num_gpus=8", "write `--set devices.count=8`"),
        ("flash_attention=true", "write `--set attn_implementation=flash_attention_2`"),
        ("lora_rank=8", "write `--set lora_r=8`"),
        ("deepspeed=x.json", "`--set distributed_type=DEEPSPEED --set zero_stage=2` pins it"),
        ("learning_rat=1", "did you mean `learning_rate`?"),
    ],
)
def test_a_flag_is_answered_with_the_flag_to_write(tmp_path, flag, hint):
    ((where, _, told),) = problems(tmp_path, JOB, flag)
    assert where == "--set"
    assert hint in told


@pytest.mark.parametrize(
    "flag", ["global_batch_size=0", "max_length=no", "tuning=x", "headroom=2", "precision=3"]
)
def test_a_wrong_value_of_a_field_of_the_job_is_sent_nowhere_else(tmp_path, flag):
    ((_, what, hint),) = problems(tmp_path, "", flag)
    assert "must be " in what and hint == ""


def test_a_list_of_all_fields_is_told_once(tmp_path):
    found = problems(tmp_path, "foo: 1\nbar: 2\nzork: 3\nlr: 1e-4\nfixed: {qqq: 1, zzz: 2}\n")
    assert sum("choose from `budget`" in hint for _, _, hint in found) == 1
    assert len(found) == 6


def test_of_very_many_problems_the_first_are_told(tmp_path):
    fields = "".join(f"  learning_rat{n}: 1\n" for n in range(2000))
    top = "".join(f"zork{n}: 1\n" for n in range(2000))
    found = problems(tmp_path, f"{top}training:\n{fields}")
    assert len(found) == 101
    assert found[-1][1] == "and 3,900 more problems"
