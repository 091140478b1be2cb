"""`deepspeed.json`, read by those who will: DeepSpeed itself, and transformers' Trainer."""

import copy
import json

import pytest
from accelerate.utils import DeepSpeedPlugin
from transformers import LlamaConfig, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from autotune.bundle.planned import MARK, marked
from autotune.space.sharding.deepspeed import deepspeed_config
from autotune.space.sharding.sharding import Sharding

HIDDEN = 96
CPU = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "bf16": False,
    "fp16": False,
}
OFFLOADS = ("none", "cpu")
ALL = [
    (stage, optimizer, param)
    for stage in (1, 2, 3)
    for optimizer in OFFLOADS
    for param in (OFFLOADS if stage == 3 else ("none",))
]


class Model:
    """All that the Trainer asks the model for here."""

    config = LlamaConfig(hidden_size=HIDDEN)


def filled(file, folder):
    """The file as transformers' Trainer completes it."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=CPU["per_device_train_batch_size"],
        gradient_accumulation_steps=CPU["gradient_accumulation_steps"],
        max_grad_norm=CPU["max_grad_norm"],
        use_cpu=True,
        report_to="none",
    )
    reader = HfTrainerDeepSpeedConfig(copy.deepcopy(file))
    reader.trainer_config_process(arguments)
    reader.trainer_config_finalize(arguments, Model(), 10)
    return reader.config


@pytest.mark.parametrize(("stage", "optimizer", "param"), ALL)
def test_deepspeed_reads_the_file_as_it_is_meant(stage, optimizer, param):
    config = pytest.importorskip("deepspeed.runtime.config")
    spread = Sharding(
        distributed_type="DEEPSPEED",
        num_processes=8,
        zero_stage=stage,
        offload_optimizer_device=optimizer,
        offload_param_device=param,
    )
    made = deepspeed_config(spread, CPU | {"bf16": True}, HIDDEN, device_kind="cuda")
    read = config.DeepSpeedConfig(copy.deepcopy(made))
    assert read.zero_optimization_stage == stage
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (4, 2)
    assert read.gradient_clipping == 0.5
    assert read.bfloat16_config.enabled
    zero = read.zero_config
    assert zero.reduce_bucket_size == HIDDEN * HIDDEN
    for section, device in ((zero.offload_optimizer, optimizer), (zero.offload_param, param)):
        assert (section.device if section else "none") == device
    if stage == 3:
        assert zero.prefetch_bucket_size == int(0.9 * HIDDEN * HIDDEN)
        assert zero.param_persistence_threshold == 10 * HIDDEN
        assert zero.gather_16bit_weights_on_model_save


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_mark_of_a_plan_is_passed_over(stage, tmp_path):
    """By DeepSpeed, by transformers' Trainer, and by accelerate, each with its own reader."""
    config = pytest.importorskip("deepspeed.runtime.config")
    spread = Sharding(distributed_type="DEEPSPEED", num_processes=2, zero_stage=stage)
    made = deepspeed_config(spread, CPU, HIDDEN, device_kind="cpu")
    text = marked({"deepspeed.json": json.dumps(made, indent=2)})["deepspeed.json"]
    file = tmp_path / "deepspeed.json"
    file.write_text(text, encoding="utf-8")
    assert json.loads(text) == {"_autotune": MARK, **made}
    assert filled(json.loads(text), tmp_path) == {"_autotune": MARK, **made}
    assert DeepSpeedPlugin(hf_ds_config=str(file)).zero_stage == stage
    plain, read = (config.DeepSpeedConfig(one) for one in (copy.deepcopy(made), json.loads(text)))
    assert read.zero_config == plain.zero_config
    settings = ("train_batch_size", "gradient_clipping", "bfloat16_config", "steps_per_print")
    assert all(getattr(read, name) == getattr(plain, name) for name in settings)


BATCH = ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"]
SIZES = [
    *("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
]
"""What transformers fills in where a file says `auto`."""


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_trainer_fills_auto_with_the_very_values_that_are_resolved(stage, tmp_path):
    spread = Sharding(distributed_type="DEEPSPEED", num_processes=2, zero_stage=stage)
    resolved = deepspeed_config(spread, CPU, HIDDEN, device_kind="cpu")
    auto = copy.deepcopy(resolved)
    zero = auto["zero_optimization"]
    for section, names in ((auto, BATCH), (auto["bf16"], ["enabled"]), (zero, SIZES)):
        section.update({name: "auto" for name in names if name in section})
    assert filled(auto, tmp_path) == resolved
    assert filled(resolved, tmp_path) == resolved  # and finds nothing to object to


def test_the_trainer_objects_to_another_batch(tmp_path):
    spread = Sharding(distributed_type="DEEPSPEED", num_processes=2, zero_stage=2)
    other = deepspeed_config(spread, CPU, HIDDEN, device_kind="cpu")
    other["train_micro_batch_size_per_gpu"] += 1
    with pytest.raises(ValueError, match="train_micro_batch_size_per_gpu=5 vs hf"):
        filled(other, tmp_path)
