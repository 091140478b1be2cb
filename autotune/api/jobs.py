"""A job of a file, or of what a program holds."""

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from autotune.errors import user_error, visible
from autotune.facts.stack import refuse_missing
from autotune.job.job import Job
from autotune.job.yaml_file import dump_flow
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.job_file.load import load_data
from autotune.space.job_file.load import load_job as load_file


def load_job(source: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None) -> Job:
    """Return the job of a file or of a mapping.

    >>> job = load_job(
    ...     {
    ...         "method": "sft",
    ...         "model": "qwen2.5-7b",
    ...         "dataset": {"lengths": {"max": 2048, "p50": 300}},
    ...         "tuning": "lora",
    ...         "global_batch_size": 64,
    ...         "max_length": 2048,
    ...     },
    ...     set={"devices.memory": "20GiB", "learning_rate": 1e-4},
    ... )
    >>> job.global_batch_size, job.devices.memory, job.training
    (64, 21474836480, {'learning_rate': 0.0001})

    Args:
        source: a job file, one of another tool (TRL, Axolotl, LLaMA-Factory and so on), or the
            fields of a job. Paths in a file are relative to it, others to the current folder.
        set: values over it, by the name of any job field (`devices.memory`), knob or training
            field, as `--set` takes them.

    Raises:
        UserError: the job cannot be, every problem at once; or the installed TRL lacks its trainer.
    """
    sets = _sets(set or {})
    if isinstance(source, Mapping):
        job, _ = load_data(plain(source), sets)
    else:
        job, _ = load_file(Path(source), sets, imported=lambda found: say(found.line(str(source))))
    refuse_missing(job.method)
    for assumption in job.assumed:
        say(f"assumed: {assumption}")
    return job


def definition_of(job: Job) -> SpaceDefinition:
    """Return the search space of a job."""
    return load_definition(job.method)


def pinned(job: Job, knobs: Mapping[str, Any]) -> Job:
    """Return a job with some knobs pinned.

    Raises:
        UserError: they cannot be.
    """
    return load_data(job.plain(), _sets(knobs))[0]


def plain(value: Any, where: str = "") -> Any:
    """Return a value as a job file has it: a path is a text, a tuple a list, an enum its value, a
    number of numpy one of Python.

    Raises:
        UserError: a file can have no such value.
    """
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return plain(value.value, where)
    if isinstance(value, Mapping):
        return {name: plain(part, str(name)) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, where) for part in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if callable(number := getattr(value, "item", None)):  # of numpy, or a tensor of one number
        return plain(number(), where)
    name = type(value).__name__
    raise user_error(
        f"a value is a text, a number, true, false, a list or a mapping; this is of type {name}",
        where=where,
        hint="write it as in a job file",
    )


def _sets(values: Mapping[str, Any]) -> list[str]:
    """Return values by their names, as `--set` takes them."""
    return [f"{name}={dump_flow(plain(value, name))}" for name, value in values.items()]


def say(text: str) -> None:
    """Print a line on stderr, which a notebook shows below the cell."""
    print(visible(text), file=sys.stderr, flush=True)
