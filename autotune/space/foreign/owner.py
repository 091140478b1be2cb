"""Whose configuration a file is. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import user_error
from autotune.space.foreign import axolotl, llamafactory, torchtune, trl, unsloth
from autotune.space.foreign.registry import is_registry
from autotune.space.foreign.tool import Tool, words

Part = Literal["accelerate", "DeepSpeed", "registry", "model"]
_OWN = {"method", "tuning", "global_batch_size", "devices", "budget", "training", "recipe", "fixed"}
"""Fields that a job has and no other tool's file: with one of them it is a job with mistakes."""
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (axolotl.TOOL, llamafactory.TOOL, unsloth.TOOL, torchtune.TOOL, trl.TOOL)
}


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A file that belongs to a launch and alone makes no job: fields of which it has at least two,
    and what to do with it."""

    name: str
    marks: frozenset[str]
    hint: str


_BESIDE = (
    "give it beside the trainer's file: `autotune import trainer.yaml {file}`; "
    "`autotune check FOLDER` says whether they agree"
)
_PARTS = (
    _Part(
        name="DeepSpeed",
        marks=words(
            "zero_optimization train_micro_batch_size_per_gpu train_batch_size gradient_clipping "
            "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer"
        ),
        hint=_BESIDE,
    ),
    _Part(
        name="accelerate",
        marks=words(
            "compute_environment distributed_type machine_rank num_machines num_processes "
            "mixed_precision main_training_function downcast_bf16 rdzv_backend "
            "deepspeed_config fsdp_config"
        ),
        hint=_BESIDE,
    ),
    _Part(
        name="a transformers model",
        marks=words(
            "architectures model_type hidden_size num_hidden_layers num_attention_heads "
            "vocab_size transformers_version n_embd n_layer"
        ),
        hint="write a job that names this file: `model: ./{file}` (docs/job.md; `autotune init` "
        "asks)",
    ),
)


def tool_of(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool whose training a file configures; None: it is not such a file."""
    if torchtune.is_torchtune(data):
        return torchtune.TOOL
    if part_of(data) is not None or _is_job(data):
        return None
    return _by_marks(data)


def _by_marks(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool of which a file has two fields."""
    trls = "model_name_or_path" in data and "model_name" not in data
    tools = [tool for tool in TOOLS.values() if not (trls and tool is unsloth.TOOL)]
    return next((tool for tool in tools if len(tool.marks & data.keys()) >= 2), None)


def part_of(data: Mapping[str, Any]) -> str | None:
    """Return whose file it is that makes a job beside others only; None: it is none."""
    if _is_job(data):
        return None
    if isinstance(data.get("zero_optimization"), Mapping):
        return "DeepSpeed"
    if {"num_processes", "mixed_precision"} & data.keys() and _by_marks(data) is not None:
        return None  # a trainer's file, with settings of its launcher
    return next((part.name for part in _PARTS if len(part.marks & data.keys()) >= 2), None)


def refuse_part(data: Mapping[str, Any], file: str) -> None:
    """Refuse a file that makes no job by itself, before each of its fields is.

    Raises:
        UserError: it is one.
    """
    name = part_of(data)
    if name is None and is_registry(data):
        what = "LLaMA-Factory's registry of data sets, not a job"
        raise user_error(what, where=file, hint=_BESIDE.partition(";")[0].format(file=_last(file)))
    if name is not None:
        hint = next(part.hint for part in _PARTS if part.name == name)
        what = f"a configuration of {name}, not a job"
        raise user_error(what, where=file, hint=hint.replace("{file}", _last(file)))


def refuse_foreign(data: Mapping[str, Any], file: str) -> None:
    """Refuse every file of another tool, where none is read.

    Raises:
        UserError: it is one.
    """
    refuse_part(data, file)
    tool = tool_of(data)
    if tool is not None:
        hint = "`autotune import FILE` makes a job of it"
        raise user_error(f"a configuration of {tool.name}, not a job", where=file, hint=hint)


def _is_job(data: Mapping[str, Any]) -> bool:
    return bool(_OWN & data.keys()) or {"model", "dataset"} <= data.keys()


def _last(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]
