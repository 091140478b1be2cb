"""torchtune's recipe YAML (0.6): nested, each part with its `_component_`. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.fields import Rule, leave, leave_all, to
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import Tool, read_model, refuse, set_lengths
from autotune.space.knobs import ACCUMULATION, MINI_BATCHES

COMPONENT = "_component_"
_LOSSES = {
    "DPOLoss": "dpo",
    "PPOLoss": "ppo",
    "GRPOLoss": "grpo",
    "GRPOSimpleLoss": "grpo",
    "GRPOWithChunkedOutputLoss": "grpo",
    "CEWithChunkedOutputLoss": "sft",
    "LinearCrossEntropyLoss": "sft",
    "CrossEntropyLoss": "sft",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.AdamW8bit": "adamw_8bit",
}
_SCHEDULES = {"get_cosine_schedule_with_warmup": "cosine"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_OUTPUT = {"output_proj": "o_proj"}
"""What torchtune calls a module, and transformers does."""
_OWN = "a setting of torchtune's own"
_RULES: dict[str, Rule] = {
    "tokenizer.max_seq_len": to("max_length"),
    "seed": to("seed"),
    "epochs": to("num_train_epochs"),
    "optimizer.lr": to("learning_rate"),
    "optimizer.weight_decay": to("weight_decay"),
    "optimizer.fused": to("optim", {True: "adamw_torch_fused", False: "adamw_torch"}),
    "lr_scheduler.num_warmup_steps": to("warmup_steps"),
    "loss.beta": to("beta"),
    "loss.label_smoothing": to("label_smoothing"),
    "clip_grad_norm": to("max_grad_norm"),
    "compile": to("torch_compile"),
    "device": to("devices.kind", {"cuda": "auto", "cpu": "cpu"}),
    "enable_activation_checkpointing": to("gradient_checkpointing"),
    "enable_activation_offloading": to("activation_offloading"),
    "model.lora_rank": to("lora_r"),
    "model.lora_alpha": to("lora_alpha"),
    "model.lora_dropout": to("lora_dropout"),
    "model.use_dora": to("use_dora"),
    "output_dir": to("output_dir"),
    "log_every_n_steps": to("logging_steps"),
    "dataset.packed": to("packing"),
    "max_steps_per_epoch": leave("`training: {max_steps: ...}` is the number of all steps"),
    "grpo_samples": to("num_generations"),
    "num_generations": to("num_generations"),
    "loss.kl_coeff": to("beta"),
    "loss.epsilon": to("epsilon"),
    "temperature": to("temperature"),
    "top_k": to("top_k"),
    "kl_coeff": to("kl_coef"),
    "gamma": to("gamma"),
    "lmbda": to("lam"),
    "whiten_rewards": to("whiten_rewards"),
    "min_response_length": leave(_OWN),
    "penalise_no_eos": leave(_OWN),
    "reward_penalty": leave(_OWN),
    "num_steps": leave("a job says how long by `training: {max_steps: ...}`"),
    "forward_batch_size": leave("it cuts what is generated and scored, not what is trained"),
    "stop_token_ids": leave(_OWN),
    "seed_generation": leave(_OWN),
    "save_every_n_steps": leave(_OWN),
    "save_every_n_epochs": leave(_OWN),
    "optimizer_in_bwd": leave(
        "TRL's optimizer steps after the backward pass; it needs more memory"
    ),
    "tensor_parallel_dim": leave("a job spreads rows only; the global batch counts what is left"),
    **leave_all(
        "shuffle resume_from_checkpoint save_adapter_weights_only log_peak_memory_stats log_level "
        "model_cfg fsdp_cpu_offload custom_sharded_layers",
        _OWN,
    ),
}
_HIDDEN = dict.fromkeys(
    ("metric_logger", "profiler", "checkpointer", "tokenizer", "dataset", "dataset_val",
     "lr_scheduler", "optimizer", "loss", "model", "log_", "policy_model", "reward_and_value_model",
     "value_checkpointer", "reward_checkpointer", "ref_checkpointer", "ref_policy"), _OWN
)  # fmt: skip


def flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return its fields with the parts of a nested name joined; `${name}` as what it stands for."""
    fields: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else str(name))
        else:
            fields[path] = value

    walk(data, "")
    return {name: _resolved(value, data) for name, value in fields.items()}


def _resolved(value: Any, data: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    if whole := re.fullmatch(r"\$\{(\w+)\}", value):
        found = data.get(whole[1], value)
        return value if isinstance(found, Mapping | list) else found
    return re.sub(r"\$\{(\w+)\}", lambda name: str(data.get(name[1], name[0])), value)


def is_torchtune(data: Mapping[str, Any]) -> bool:
    """True if a part of the file names its component."""
    return any(isinstance(value, Mapping) and COMPONENT in value for value in data.values())


def _last(value: Any) -> str:
    return str(value).rpartition(".")[2]


def _method(data: Mapping[str, Any]) -> str | None:
    loss = data.get(f"loss.{COMPONENT}")
    return "sft" if loss is None else _LOSSES.get(_last(loss))


def _read(reading: Reading) -> None:
    reading.end(f"loss.{COMPONENT}", "carried", f"method: {reading.method.name}")
    _read_model(reading)
    _read_modules(reading)
    reading.shards = True  # every distributed recipe of torchtune's does
    dtype = str(reading.given("dtype"))
    if dtype in _DTYPES:
        reading.carry("dtype", "precision", dtype, detail="precision and fixed.dtype")
        reading.write("fixed.dtype", _DTYPES[dtype])
    elif reading.given("dtype") is not None:
        refuse(reading, "dtype", f"`{dtype}` is not bf16 or fp32")
    _read_optimizer(reading)
    if reading.method.online:
        _read_rows(reading)
    length = "tokenizer.max_seq_len"
    if reading.given(length) is not None:
        reading.place(length, "max_length", reading.given(length))
    elif not reading.method.online:
        reading.assume("max_length", None, "no `tokenizer.max_seq_len`: torchtune never truncates")
        reading.end(length, "carried", "max_length: null")
    for name in [name for name in reading.data if name.startswith("dataset.")]:
        if name != "dataset.packed":
            reading.leave(name, "torchtune's data set classes form rows as TRL does not")
    set_lengths(reading, "torchtune's data set classes form rows as TRL does not")


def _read_rows(reading: Reading) -> None:
    """Read lengths and rows of a method that generates: they are counted in completions."""
    grpo = reading.method.name == "grpo"
    longest = {name: to(reading.method.completion) for name in ("max_generated_tokens",)}
    epochs = to("num_iterations" if grpo else "num_ppo_epochs")
    for name, rule in {**longest, "ppo_epochs": epochs}.items():
        if reading.given(name) is not None:
            reading.apply(name, rule)
    rows, steps = reading.counted("batch_size", 1), reading.counted(ACCUMULATION, 1)
    if grpo:
        group = "grpo_samples" if reading.given("grpo_samples") else "num_generations"
        reading.rows = rows * reading.counted(group, 1)
    elif reading.given("ppo_batch_size") is not None:
        mini = reading.counted("ppo_batch_size", rows)
        reading.rows = max(mini // steps, 1)
        reading.carry("ppo_batch_size", f"fixed.{MINI_BATCHES}", max(rows // mini, 1))
    if grpo and reading.given("loss.kl_coeff") is None:
        reading.end("loss.kl_coeff", "carried", "off")


def _read_model(reading: Reading) -> None:
    """Read the model by the folder of its checkpoint, and what its builder trains."""
    read_model(reading, "checkpointer.checkpoint_dir")
    builder = _last(reading.given(f"model.{COMPONENT}") or "")
    quantised = builder.startswith("qlora_") or reading.is_on("model.quantize_base")
    tuning = "qlora" if quantised else "lora" if builder.startswith("lora_") else "full"
    reading.carry(f"model.{COMPONENT}", "tuning", tuning)
    reading.end("model.quantize_base", "carried", f"tuning: {tuning}")


def _read_modules(reading: Reading) -> None:
    """Read the modules that get an adapter, by transformers' names."""
    given = reading.given("model.lora_attn_modules")
    names = [_OUTPUT.get(str(n), str(n)) for n in given] if isinstance(given, list) else []
    mlp = reading.is_on("model.apply_lora_to_mlp")
    names += _MLP if mlp else ()
    if reading.is_on("model.apply_lora_to_output"):
        names.append("lm_head")
    if names:
        reading.carry("model.lora_attn_modules", "fixed.lora_target_modules", names)
        for name in ("model.apply_lora_to_mlp", "model.apply_lora_to_output"):
            reading.end(name, "carried", "fixed.lora_target_modules")


def _read_optimizer(reading: Reading) -> None:
    name = f"optimizer.{COMPONENT}"
    given = reading.given(name)
    if given is None:
        return
    ours = _OPTIMIZERS.get(str(given))
    if ours is None:
        reading.leave(name, f"`{given}` is not an optimizer of transformers")
    elif ours == "adamw_torch":
        reading.search(name, "optim")
    else:
        reading.carry(name, "fixed.optim", ours)
        reading.end("optimizer.fused", "carried", "of another optimizer")
    schedule = f"lr_scheduler.{COMPONENT}"
    if reading.given(schedule) is not None:
        ours = _SCHEDULES.get(_last(reading.given(schedule)))
        if ours is None:
            reading.leave(schedule, "TRL takes a schedule by name: `lr_scheduler_type`")
        else:
            reading.carry(schedule, "training.lr_scheduler_type", ours)
    else:
        reading.assume("training.lr_scheduler_type", "constant", "no `lr_scheduler` is named")


TOOL = Tool(
    name="torchtune",
    marks=frozenset({"tokenizer", "checkpointer", "recipe_checkpoint", "loss", "optimizer"}),
    rules=_RULES,
    method=_method,
    reads_by_omegaconf=True,
    read=_read,
    micro="batch_size",
    rows=1,
    defaults={"lora_dropout": 0.0, "max_grad_norm": None, "weight_decay": 0.01},
    takes_trainer_fields=False,
    as_is={"gradient_checkpointing": False},
    hidden=_HIDDEN,
    says_method=f"loss.{COMPONENT}",
    flat=flat,
)
