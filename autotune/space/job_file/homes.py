"""Where a field belongs that others write elsewhere, as the line or the flag to write. Pure."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from autotune.job.yaml_file import dump_flow
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.online import TEACHER

_SIZES = ("memory", "gpu_memory", "vram")
_MEANS = {
    # What others call a field of the job, or how it is written here; the value stays.
    **dict.fromkeys(("model_name_or_path", "base_model", "model_name"), "model"),
    **dict.fromkeys(("dataset_name", "dataset_path", "train_file"), "dataset"),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "seq_len"), "max_length"),
    **dict.fromkeys(("sequence_len", "cutoff_len"), "max_length"),
    **dict.fromkeys(("batch_size", "train_batch_size"), "global_batch_size"),
    **dict.fromkeys(("num_gpus", "n_gpus", "gpus", "num_processes"), "devices.count"),
    **dict.fromkeys(("num_machines", "num_nodes", "nnodes", "nodes"), "devices.nodes"),
    **dict.fromkeys(_SIZES, "devices.memory"),
    **dict.fromkeys(("epochs", "num_epochs"), "training.num_train_epochs"),
    **dict.fromkeys(("lr", "learning_rate"), "training.learning_rate"),
    "reward_funcs": "reward_funcs",
    **dict.fromkeys(("reward_model_name_or_path", "reward_model_path"), "reward_model_path"),
    **dict.fromkeys(("teacher_model_name_or_path", "teacher", "teacher_model"), TEACHER),
    **dict.fromkeys(("adapter", "finetuning_type"), "tuning"),
    # Since transformers 5 a number below 1 is a share of all steps.
    "warmup_ratio": "training.warmup_steps",
    "eval_batch_size": "training.per_device_eval_batch_size",
    "micro_batch_size": "fixed.per_device_train_batch_size",
}
_SWITCHES = {
    # The same of what is on or off: where it is written, and how.
    "bf16": ("precision", "bf16"),
    "fp16": ("precision", "fp16"),
    "use_cpu": ("devices.kind", "cpu"),
    "load_in_4bit": ("tuning", "qlora"),
    "use_peft": ("tuning", "lora"),
    "use_lora": ("tuning", "lora"),
}
_OTHER_NAMES = {
    # What others call a knob or a training field.
    "optimizer": "optim",
    "torch_dtype": "dtype",
    "sample_packing": "packing",
    "lora_rank": "lora_r",
    **dict.fromkeys(("lr_scheduler", "scheduler"), "lr_scheduler_type"),
    **dict.fromkeys(("flash_attention", "flash_attn"), "attn_implementation"),
    **dict.fromkeys(("use_flash_attention_2", "use_flash_attention"), "attn_implementation"),
}
_OTHER_VALUES: dict[tuple[str, Any], Any] = {
    ("attn_implementation", True): "flash_attention_2",
    **{("attn_implementation", name): "flash_attention_2" for name in (True, 2, "fa2")},
    **{("attn_implementation", name): "flash_attention_3" for name in (3, "fa3")},
    **{("attn_implementation", name): "flash_attention_4" for name in (4, "fa4")},
    ("dtype", "bf16"): "bfloat16",
    ("dtype", "fp16"): "float16",
    ("dtype", "fp32"): "float32",
}
_SEARCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient_accumulation_steps": (
        "it follows from `global_batch_size` and the micro-batch",
        {},
    ),
    "deepspeed": (
        "how devices share the training is searched",
        {"distributed_type": "DEEPSPEED", "zero_stage": 2},
    ),
    "fsdp": ("how devices share the training is searched", {"distributed_type": "FSDP"}),
    "auto_find_batch_size": ("the batch size is searched", {}),
}
_ONLINE = "use_vllm"


@dataclass(frozen=True)
class Home:
    """A value and the place in a job where it belongs."""

    path: tuple[str, ...]
    value: Any

    @property
    def line(self) -> str:
        """The line of a job file that sets it."""
        value = [self.value] if self.path[0] == "recipe" else self.value
        for part in reversed(self.path[1:]):
            value = {part: value}
        return f"{self.path[0]}: {dump_flow(value)}"

    @property
    def flag(self) -> str:
        """The flag that sets it: of knobs and training fields the name is enough."""
        inside = self.path[0] in ("training", "fixed", "recipe")
        name = self.path[-1] if inside else ".".join(self.path)
        return f"--set {shlex.quote(f'{name}={dump_flow(self.value)}')}"

    def told(self, by_flag: bool) -> str:
        """Return what to write."""
        return f"write `{self.flag if by_flag else self.line}`"


def home_of(
    name: str,
    value: Any,
    definition: SpaceDefinition,
    fields: Collection[str],
    *,
    by_flag: bool = False,
) -> str | None:
    """Return what to write in place of an unknown field of a job; None: nothing is known of it.

    Args:
        definition: the search space of the job.
        fields: the training fields of its method.
        by_flag: whether it came as `--set name=value`.
    """
    if value is False and name in ("bf16", "fp16"):
        full = Home(("precision",), "fp32").told(by_flag)
        return f"leave it out; to train without mixed precision {full}"
    known = {*_MEANS, *_SWITCHES, *_OTHER_NAMES}
    if value is False and name in known and name != "sample_packing":
        return "leave it out"
    if name == "device":
        return _device(value, by_flag)
    if name == _ONLINE and definition.knob(name) is None and name not in fields:
        return "leave it out: it is for `method: grpo` and `method: rloo`"
    if name in _SEARCHED:
        return _pinned(*_SEARCHED[name], by_flag)
    if name in _SWITCHES:
        path, written = _SWITCHES[name]
        return Home(tuple(path.split(".")), written).told(by_flag)
    if name in _MEANS and not (name == "warmup_ratio" and name in fields):
        return Home(tuple(_MEANS[name].split(".")), value).told(by_flag)
    name = _OTHER_NAMES.get(name, name)
    if (name, value) == ("dtype", "auto"):
        return f"leave it out, or {Home(('recipe', 'dtype'), 'bfloat16').told(by_flag)}"
    return _of_knob_or_field(name, _translated(name, value), definition, fields, by_flag)


def of_devices(value: Any, by_flag: bool) -> str | None:
    """Return what to write where `devices` is one value: memory, a number of them, or a kind."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return Home(("devices",), {"count": 2, "memory": "20GiB"}).told(by_flag)
    if isinstance(value, int):
        return Home(("devices", "count"), value).told(by_flag)
    if value[:1].isdecimal():
        return Home(("devices", "memory"), value).told(by_flag)
    return _device(value, by_flag)


def _of_knob_or_field(
    name: str, value: Any, definition: SpaceDefinition, fields: Collection[str], by_flag: bool
) -> str | None:
    knob = definition.knob(name)
    if knob is not None and not by_flag and knob.kind == "speed":
        return f"leave it out: it is searched; `{Home(('fixed', name), value).line}` pins it"
    if knob is not None:
        return Home(("recipe", name), value).told(by_flag)
    return Home(("training", name), value).told(by_flag) if name in fields else None


def _translated(name: str, value: Any) -> Any:
    """Return a value as the stack of today writes it."""
    if name in _SIZES and str(value).isdecimal():
        return f"{value}GiB"  # a size without a unit would be so many bytes
    value = value.removeprefix("torch.") if isinstance(value, str) else value
    return _OTHER_VALUES.get((name, value), value) if isinstance(value, str | int) else value


def _pinned(reason: str, pins: dict[str, Any], by_flag: bool) -> str:
    text = f"leave it out: {reason}"
    if not pins:
        return text
    flags = " ".join(Home(("fixed", name), value).flag for name, value in pins.items())
    return f"{text}; `{flags if by_flag else f'fixed: {dump_flow(pins)}'}` pins it"


def _device(value: Any, by_flag: bool) -> str:
    """Return what a kind of device is, or the name of one."""
    kind = str(value).partition(":")[0].lower()
    if kind in ("cuda", "gpu", "cpu"):
        return Home(("devices", "kind"), "cpu" if kind == "cpu" else "cuda").told(by_flag)
    kinds = Home(("devices", "kind"), "cuda").told(by_flag)
    return f"{kinds}; which GPU it is, `autotune plan --device h200` says"
