"""A job of a file, or of what a program holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.api.talk import say
from autotune.job.job import Job
from autotune.job.yaml_file import dump_flow
from autotune.plan.questions.missing_trainer import refuse_missing
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.job_file.load import load_data
from autotune.space.job_file.load import load_job as load_file


def load_job(source: str | Path | Mapping[str, Any], set: Mapping[str, Any] | None = None) -> Job:
    """The job of a file or of a mapping.

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
    sets = [f"{name}={dump_flow(_plain(value))}" for name, value in (set or {}).items()]
    if isinstance(source, Mapping):
        job, _ = load_data(_plain(source), sets)
    else:
        job, _ = load_file(Path(source), sets, imported=lambda found: say(found.line(str(source))))
    refuse_missing(job, device=None, figures=False)
    for assumption in job.assumed:
        say(f"assumed: {assumption}")
    return job


def definition_of(job: Job) -> SpaceDefinition:
    """The search space of a job."""
    return load_definition(job.method, job.search_space)


def pinned(job: Job, knobs: Mapping[str, Any]) -> Job:
    """A job with some knobs pinned.

    Raises:
        UserError: they cannot be.
    """
    sets = [f"{name}={dump_flow(_plain(value))}" for name, value in knobs.items()]
    return load_data(job.plain(), sets)[0]


def _plain(value: Any) -> Any:
    """A value as a job file has it: a path is a text, a tuple a list."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
