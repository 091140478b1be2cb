"""Whose configuration a file is. Pure."""

import functools
from collections.abc import Mapping
from typing import Any

from autotune.errors import user_error
from autotune.space.foreign.tool import TORCHTUNE, UNSLOTH, Tool, table, tool, tools, words

COMPONENT = "_component_"
_OWN = {"method", "tuning", "global_batch_size", "devices", "budget", "training", "recipe", "fixed"}
"""Fields that a job has and no other tool's file: with one of them it is a job with mistakes."""
MODEL = "a transformers model"
_BESIDE = (
    "give it beside the trainer's file: `autotune import trainer.yaml {file}`; "
    "`autotune check FOLDER` says whether they agree"
)
_NAMED = "write a job that names this file: `model: ./{file}` (docs/job.md; `autotune init` asks)"


def tool_of(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool whose training a file configures; None: it is not such a file."""
    if any(isinstance(value, Mapping) and COMPONENT in value for value in data.values()):
        return tool(TORCHTUNE)
    return None if part_of(data) is not None or _is_job(data) else _by_marks(data)


def _by_marks(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool of which a file has two fields."""
    trls = "model_name_or_path" in data and "model_name" not in data
    known = (one for one in tools() if not (trls and one.file == UNSLOTH))
    return next((one for one in known if len(one.marks & data.keys()) >= 2), None)


@functools.cache
def _parts() -> Mapping[str, frozenset[str]]:
    return {name: words(marks) for name, marks in table("launch")["parts"].items()}


def part_of(data: Mapping[str, Any]) -> str | None:
    """Return whose file it is that makes a job beside others only; None: it is none."""
    if _is_job(data):
        return None
    if isinstance(data.get("zero_optimization"), Mapping):
        return "DeepSpeed"
    if {"num_processes", "mixed_precision"} & data.keys() and _by_marks(data) is not None:
        return None  # a trainer's file, with settings of its launcher
    return next((name for name, marks in _parts().items() if len(marks & data.keys()) >= 2), None)


def is_registry(data: Mapping[str, Any]) -> bool:
    """True if a file lists LLaMA-Factory's data sets."""
    places = ("file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name")
    return bool(data) and all(
        isinstance(entry, Mapping) and any(place in entry for place in places)
        for entry in data.values()
    )


def refuse_part(data: Mapping[str, Any], file: str) -> None:
    """Refuse a file that makes no job by itself, before each of its fields is.

    Raises:
        UserError: it is one.
    """
    name, last = part_of(data), file.replace("\\", "/").rpartition("/")[2]
    if name is None and is_registry(data):
        what = "LLaMA-Factory's registry of data sets, not a job"
        raise user_error(what, where=file, hint=_BESIDE.partition(";")[0].format(file=last))
    if name is not None:
        hint = (_NAMED if name == MODEL else _BESIDE).replace("{file}", last)
        raise user_error(f"a configuration of {name}, not a job", where=file, hint=hint)


def _is_job(data: Mapping[str, Any]) -> bool:
    return bool(_OWN & data.keys()) or {"model", "dataset"} <= data.keys()
