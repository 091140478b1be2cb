"""TRL's YAML and flags, and what `TrainingArguments.to_json_string()` writes. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.facts.stack import training_fields
from autotune.job.methods import METHODS
from autotune.space.foreign.fields import leave, to
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import (
    TRAINER_RULES,
    Tool,
    read_model,
    read_precision,
    set_lengths,
    words,
)
from autotune.space.job_file.online import is_reward

_MARKS = words(
    "model_name_or_path output_dir per_device_train_batch_size per_device_eval_batch_size "
    "dataset_name learning_rate bf16 fp16 num_train_epochs max_steps weight_decay optim "
    "gradient_accumulation_steps gradient_checkpointing lr_scheduler_type warmup_steps "
    "warmup_ratio logging_steps save_steps save_strategy eval_strategy report_to"
)
_KERNELS = {True: "flash_attention_2", False: "sdpa"}
_ADAPTERS = ("lora_r", "lora_target_modules")
_SCRIPT = "of TRL's script, which a job has no field for"
_RULES = {
    **TRAINER_RULES,
    "dataset_config": to("dataset_config"),
    "dataset_train_split": to("dataset_train_split"),
    "dataset_test_split": to("dataset_test_split"),
    "use_flash_attention_2": to("attn_implementation", _KERNELS),
    "reward_model_name_or_path": to("reward_model_path"),
    "reward_model_path": to("reward_model_path"),
    "reward_funcs": to("reward_funcs"),
    "deepspeed_plugin": leave("the launcher's"),
    "dataset_streaming": leave(_SCRIPT),
    "ignore_bias_buffers": leave(_SCRIPT),
    "gradient_checkpointing_use_reentrant": leave(_SCRIPT),
    "env": leave("variables of the environment are the launcher's"),
}


def _method(data: Mapping[str, Any]) -> str | None:
    """Return the method whose fields alone explain the file; None: several do."""
    fits = [name for name in METHODS if name != "ppo" and _own_fields(name) & data.keys()]
    best = max((len(_own_fields(name) & data.keys()) for name in fits), default=0)
    most = [name for name in fits if len(_own_fields(name) & data.keys()) == best]
    return most[0] if len(most) == 1 else None


def _own_fields(method: str) -> frozenset[str]:
    """Return fields of a method that not every other has."""
    shared = frozenset.intersection(*(training_fields(n) for n in METHODS if n != "ppo"))
    return training_fields(method) - shared


def _read(reading: Reading) -> None:
    read_model(reading, "model_name_or_path")
    _read_tuning(reading)
    read_precision(reading, default="fp32" if _is_dumped(reading) else "auto")
    for name in ("max_length", "max_seq_length"):
        if reading.given(name) is not None:
            reading.place(name, "max_length", reading.given(name))
    if reading.given("dtype") == "auto" or reading.given("torch_dtype") == "auto":
        for name in ("dtype", "torch_dtype"):
            reading.carry(name, "fixed.dtype", "bfloat16")
        reading.assumed.append("fixed.dtype: bfloat16 (`auto`: nearly all models are stored so)")
    _read_data(reading)
    _read_rewards(reading)
    _read_ppo(reading)


def _is_dumped(reading: Reading) -> bool:
    """True if a program wrote the file, with fields that nobody set."""
    return "logging_nan_inf_filter" in reading.data and len(reading.data) > 60


def _read_tuning(reading: Reading) -> None:
    peft, four, eight = (reading.is_on(n) for n in ("use_peft", "load_in_4bit", "load_in_8bit"))
    said = [name for name in _ADAPTERS if reading.given(name) is not None]
    guess = bool(said) and reading.given("use_peft") is None and not reading.own_program
    adapters = "lora" if peft or guess else "full"
    tuning = "qlora" if adapters == "lora" and (four or eight) else adapters
    if guess and not _is_dumped(reading):
        reading.assume("tuning", tuning, f"`{said[0]}` is an adapter's")
    reading.say_half("load_in_4bit", four or eight, ("bnb_4bit_quant_type", "use_bnb_nested_quant"))
    for name in ("use_peft", "load_in_4bit"):
        reading.carry(name, "tuning", tuning) if name in reading.data else None
    if eight and adapters == "lora":
        reading.carry("load_in_8bit", "fixed.load_in_8bit", True)
        reading.write("tuning", tuning)
    elif not eight:
        reading.end("load_in_8bit", "carried", f"tuning: {tuning}")


def _read_rewards(reading: Reading) -> None:
    """Leave out rewards of a script of one's own: a run may need them, a plan does not."""
    given = reading.given("reward_funcs")
    names = given if isinstance(given, list) else [given]
    if given is not None and not all(map(is_reward, names)):
        for name in ("reward_funcs", "reward_weights"):
            reading.leave(name, "the script knows these rewards; a run asks for its own")


def _read_ppo(reading: Reading) -> None:
    """Read the policy and the length of PPO, which a job says as other methods do."""
    if reading.method.name != "ppo":
        return
    policy = reading.given("sft_model_path")
    if policy is not None and policy != reading.given("model_name_or_path"):
        reading.assumed.append(f"model: {policy} (the policy begins as `sft_model_path`)")
    if isinstance(policy, str):
        reading.carry("sft_model_path", "model", policy, detail="model: the policy begins as it")


def _read_data(reading: Reading) -> None:
    given = reading.given("dataset_name")
    if isinstance(given, str):
        reading.carry("dataset_name", "dataset", given)
        return
    mixture = reading.given("datasets")
    if isinstance(mixture, list) and len(mixture) == 1 and isinstance(mixture[0], Mapping):
        part = mixture[0]
        if isinstance(part.get("path"), str) and not {"data_files", "columns"} & part.keys():
            reading.carry("datasets", "dataset", part["path"])
            for theirs, ours in (("name", "dataset_config"), ("split", "dataset_train_split")):
                if part.get(theirs):
                    reading.write(ours, part[theirs])
            return
    why = "a mixture: a job has one data set" if mixture else "no data set is named"
    reading.leave("datasets", why)
    set_lengths(reading, why)


TOOL = Tool(
    name="TRL or TrainingArguments",
    marks=_MARKS,
    rules=_RULES,
    method=_method,
    read=_read,
    dumps_defaults=True,
)
