"""Whose configuration a file is that is no job, and what to do with it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import user_error

_WRITE = (
    "write a job: model, dataset, method, tuning, global_batch_size, max_length "
    "(docs/job.md; `autotune init` asks for them)"
)
_SHARDING = (
    "autotune writes such a file itself, for a job with `devices: {count: 8}` (`autotune init` "
    "writes a job); `autotune check FOLDER` says whether yours agree"
)
_OWN = {"method", "tuning", "global_batch_size", "devices", "budget", "training", "recipe", "fixed"}
"""Fields that a job has and no other tool's file: with one of them it is a job with mistakes."""
_COMPONENT = "_component_"


@dataclass(frozen=True)
class _Format:
    """A tool's file, and the fields of which it has at least two."""

    owner: str
    marks: frozenset[str]
    hint: str = _WRITE


def _format(owner: str, marks: str, hint: str = _WRITE) -> _Format:
    return _Format(owner, frozenset(marks.split()), hint)


_TORCHTUNE = _format("torchtune", "tokenizer checkpointer recipe_checkpoint loss optimizer")
_FORMATS = (
    _format("Axolotl", "base_model datasets adapter sequence_len micro_batch_size sample_packing"),
    _format("LLaMA-Factory", "stage finetuning_type template cutoff_len dataset_dir"),
    _format(
        "DeepSpeed",
        "zero_optimization train_micro_batch_size_per_gpu train_batch_size gradient_clipping "
        "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer",
        _SHARDING,
    ),
    _format(
        "accelerate",
        "compute_environment distributed_type machine_rank num_machines num_processes "
        "mixed_precision main_training_function downcast_bf16 rdzv_backend "
        "deepspeed_config fsdp_config",
        _SHARDING,
    ),
    _format(
        "a transformers model",
        "architectures model_type hidden_size num_hidden_layers num_attention_heads vocab_size "
        "transformers_version n_embd n_layer",
        "write a job that names this file: `model: ./{file}` (docs/job.md; `autotune init` asks)",
    ),
    _TORCHTUNE,
    _format(
        "TRL or TrainingArguments",
        "model_name_or_path output_dir per_device_train_batch_size per_device_eval_batch_size "
        "dataset_name learning_rate bf16 fp16 num_train_epochs max_steps weight_decay optim "
        "gradient_accumulation_steps gradient_checkpointing lr_scheduler_type warmup_steps "
        "warmup_ratio logging_steps save_steps save_strategy eval_strategy report_to",
        f"{_WRITE}; what else the trainer takes goes under its `training:`",
    ),
)


def refuse_foreign(data: Mapping[str, Any], file: str) -> None:
    """Refuse another tool's configuration whole, before each of its fields is.

    Raises:
        UserError: the file names no model and data as a job does, and has fields of such a tool.
    """
    found = _owner(data)
    if found is not None:
        hint = found.hint.replace("{file}", file.replace("\\", "/").rpartition("/")[2])
        what = f"a configuration of {found.owner}, not a job"
        raise user_error(what, where=file, hint=hint)


def _owner(data: Mapping[str, Any]) -> _Format | None:
    if any(isinstance(value, Mapping) and _COMPONENT in value for value in data.values()):
        return _TORCHTUNE
    if _OWN & data.keys() or {"model", "dataset"} <= data.keys():
        return None
    return next((one for one in _FORMATS if len(one.marks & data.keys()) >= 2), None)
