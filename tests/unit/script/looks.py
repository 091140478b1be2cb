"""Scripts as a look sees them, for tests without any."""

from dataclasses import replace
from typing import Any

from autotune.script.protocol import Look

ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "optim": "adamw_torch_fused",
    "train_sampling_strategy": "random",
    "dataloader_num_workers": 0,
    "torch_empty_cache_steps": None,
    "use_liger_kernel": False,
    "activation_offloading": False,
    "padding_free": False,
    "packing": False,
    "max_length": 512,
    "num_train_epochs": 2.0,
    "max_steps": -1,
    "seed": 7,
}
LOOK = Look(
    trainer="trl.trainer.sft_trainer.SFTTrainer",
    kinds=["SFTTrainer", "Trainer"],
    arguments=ARGUMENTS,
    arguments_class="trl.trainer.sft_config.SFTConfig",
    processes=1,
    devices_per_process=1,
    device_kind="cuda",
    model="LlamaForCausalLM",
    model_type="llama",
    parameters=8_000_000_000,
    trainable=8_000_000_000,
    attention="sdpa",
    checkpointing=True,
    shape={"hidden_size": 4096, "layers": 32, "vocab_size": 128_000, "max_positions": 8192},
    peft=False,
    rows=1000,
    lengths={"p1": 10.0, "p50": 100.0, "p99": 400.0, "longest": 500.0, "mean": 120.0},
    unit="tokens",
    groups=True,
    online=False,
    flags=True,
    command_line=["train.py", "--config", "a b'c.yaml"],
)


def looked(**changes: Any) -> Look:
    """The same script, seen otherwise; names of its arguments change these."""
    fields = {name: value for name, value in changes.items() if name not in ARGUMENTS}
    arguments = {name: value for name, value in changes.items() if name in ARGUMENTS}
    extra = fields.pop("extra", {})
    return replace(LOOK, arguments={**ARGUMENTS, **arguments, **extra}, **fields)
