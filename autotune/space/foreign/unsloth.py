"""Unsloth's settings: flags of `unsloth-cli.py`, or a file of the same names. Pure."""

from autotune.space.foreign.fields import leave, leave_all, to
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import (
    TRAINER_RULES,
    Tool,
    names_of,
    read_model,
    read_precision,
    set_lengths,
)

_MODULES = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
_RULES = {
    **TRAINER_RULES,
    "max_seq_length": to("max_length"),
    "r": to("lora_r"),
    "lora_r": to("lora_r"),
    "target_modules": to("lora_target_modules", names_of),
    "use_gradient_checkpointing": to("gradient_checkpointing", {"unsloth": True}),
    "bias": leave("TRL's adapters train no bias"),
    "random_state": leave("it only draws the adapter; `seed` is the training's"),
    "loftq_config": leave("TRL's command cannot do it; what is trained differs"),
    **leave_all(
        "save_model save_method save_gguf save_path quantization quantization_method push_model "
        "push_gguf hub_path adapter_file full_finetuning fast_inference gpu_memory_utilization",
        "Unsloth's own",
    ),
}


def _read(reading: Reading) -> None:
    read_model(reading, "model_name")
    four, eight = reading.is_on("load_in_4bit"), reading.is_on("load_in_8bit")
    full = reading.is_on("full_finetuning")
    tuning = "full" if full else "qlora" if four or eight else "lora"
    reading.assume("tuning", tuning, "Unsloth trains an adapter unless `full_finetuning` is on")
    for name in ("load_in_4bit", "full_finetuning"):
        reading.end(name, "carried", f"tuning: {tuning}")
    if eight and not full:
        reading.carry("load_in_8bit", "fixed.load_in_8bit", True)
    reading.end("load_in_8bit", "carried", f"tuning: {tuning}")
    if reading.given("bf16") is None and reading.given("fp16") is None:
        reading.assumed.append("precision: auto (Unsloth takes bf16 where the GPU can)")
    else:
        read_precision(reading, default="auto")
    dtype = str(reading.given("dtype") or "bfloat16").removeprefix("torch.")
    if reading.given("dtype") is None:
        reading.assume("fixed.dtype", dtype, "Unsloth loads the base in 16 bits")
        reading.end("dtype", "carried", f"fixed.dtype: {dtype}, of itself")
    else:
        reading.carry("dtype", "fixed.dtype", dtype)
    if reading.given("max_seq_length") is not None:
        reading.place("max_seq_length", "max_length", reading.given("max_seq_length"))
    else:
        reading.assume("max_length", 2048, "Unsloth's default")
    why = "Unsloth's script joins three columns into a text of its own"
    reading.leave("dataset", why)
    set_lengths(reading, why)


TOOL = Tool(
    name="Unsloth",
    marks=frozenset(
        {"model_name", "max_seq_length", "load_in_4bit", "r", "use_gradient_checkpointing"}
    ),
    rules=_RULES,
    method=lambda data: "sft",
    read=_read,
    rows=2,
    steps=4,
    defaults={
        "lora_r": 16,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": _MODULES.split(),
        "warmup_steps": 5,
        "max_steps": 400,
        "learning_rate": 2e-4,
        "optim": "adamw_8bit",
        "weight_decay": 0.01,
        "seed": 3407,
    },
)
