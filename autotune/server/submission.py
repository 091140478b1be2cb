"""A job that somebody asks for: judged by the job's own rules and by the operator's, all problems
at once, and made a work of."""

import dataclasses
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field

from autotune.errors import AutotuneError, Problem, UserError
from autotune.facts.kind_names import find_kind
from autotune.job.job import Job
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.server.access.job_rules import CONFIG, beyond, refused
from autotune.server.access.model_config import model_config
from autotune.server.access.plain import MOST_TEXT, check_data, check_text, check_yaml
from autotune.server.settings import Allowed
from autotune.server.store.values import Kind, NewWork, Value
from autotune.space.foreign.owner import refuse_foreign
from autotune.space.job_file.load import load_job
from autotune.units import format_bytes

_NAME = "job"
_MOST_PROBLEMS = 100
_MOST_MEMORY = 4 * 2**40
"""Bytes that a GPU may have: several times what the largest has."""


class Submission(Value):
    """A job to plan or to run."""

    job: str | dict[str, Any]
    """The job file as YAML text, or as an object."""
    model_config_json: str | dict[str, Any] | None = None
    """A config.json that the job names as `model: config.json`."""
    device: str | None = Field(default=None, max_length=100)
    """Of a plan: the GPU to plan for (`h200`, `RTX 3070`, `memory=24GiB`), or `cpu`; null: the
    worker's own."""
    devices: int | None = None
    """Of a plan: how many, in place of the job's."""
    nodes: int | None = None
    """Of a plan: on how many machines."""
    stack: str = "any"
    """Of a plan: `any` package that its GPU can use, or only those that are `installed`."""
    priority: int = 0
    """The higher goes first; from -10 to 10."""
    parent: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """The work that this is a variation of."""


def accepted(kind: Kind, submission: Submission, allowed: Allowed, submitter: str) -> NewWork:
    """The work that a submission asks for.

    Raises:
        UserError: everything that is wrong with it. What the operator does not allow comes first
            and alone: whether files are there is not told to those who may not name them.
    """
    data, text = _parsed(submission.job)
    _refuse_foreign(data)
    config = None
    if submission.model_config_json is not None:
        config = model_config(submission.model_config_json, CONFIG)
    options = _option_problems(kind, submission)
    problems = [*refused(data, allowed, plan=kind == "plan", config=config is not None)]
    if problems:
        raise UserError(*[*problems, *options][:_MOST_PROBLEMS])
    try:
        job = _judged(text, config)
    except UserError as error:
        raise UserError(*error.problems, *options) from None
    if problems := [*beyond(job, allowed, kind), *options]:
        raise UserError(*problems)
    return NewWork(
        kind=kind,
        job=text,
        model_config_json=config,
        arguments=_arguments(submission),
        method=job.method,
        model=_model_name(job.model, config),
        device=submission.device or "",
        device_kind=job.devices.kind,
        device_count=job.devices.count,
        priority=submission.priority,
        submitter=submitter,
        parent=submission.parent,
    )


def _parsed(job: str | dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The job as data and as text.

    Raises:
        UserError: it is too large, or not plain.
    """
    if isinstance(job, str):
        check_yaml(job, _NAME)
        data, text = parse_yaml(job, _NAME)[0], job
        check_data(data, _NAME)
        return data, text
    check_data(job, _NAME)
    check_text(json.dumps(job), _NAME, MOST_TEXT)
    return job, to_yaml(job)


def _refuse_foreign(data: dict[str, Any]) -> None:
    """Refuse another tool's file, before its fields are.

    Raises:
        UserError: it is one.
    """
    try:
        refuse_foreign(data, _NAME)
    except UserError as error:
        first = error.problems[0]
        hint = (first.hint or "").replace(
            f"names this file: `model: ./{_NAME}`",
            f"says `model: {CONFIG}`, and let this come with it as its {CONFIG}",
        )
        raise UserError(dataclasses.replace(first, hint=hint)) from None


def _judged(text: str, config: str | None) -> Job:
    """The job, by its own rules.

    Raises:
        UserError: all that they have against it.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-job-") as scratch:
        folder = Path(scratch)
        file = folder / f"{_NAME}.yaml"
        file.write_text(text, encoding="utf-8")
        if config is not None:
            (folder / CONFIG).write_text(config, encoding="utf-8")
        try:
            return load_job(file)[0]
        except UserError as error:
            shown = error.problems[:_MOST_PROBLEMS]
            raise UserError(*(_without_folder(problem, scratch) for problem in shown)) from None


def _option_problems(kind: Kind, submission: Submission) -> list[Problem]:
    problems = []
    if submission.device and submission.device != "cpu":
        problems += _device_problems(submission.device)
    if submission.stack not in ("any", "installed"):
        problems.append(Problem(where="stack", what="must be `any` or `installed`"))
    for name, most in (("devices", 4096), ("nodes", 1024)):
        value = getattr(submission, name)
        if value is not None and not 1 <= value <= most:
            problems.append(Problem(where=name, what=f"must be from 1 to {most}, but got {value}"))
    if not -10 <= submission.priority <= 10:
        what = f"must be from -10 to 10, but got {submission.priority}"
        problems.append(Problem(where="priority", what=what))
    if kind == "run" and (submission.device or submission.devices or submission.nodes):
        what = "a run measures on the worker's own devices"
        hint = "leave device, devices and nodes out; `devices:` of the job says how many"
        problems.append(Problem(where="device", what=what, hint=hint))
    return problems


def _device_problems(device: str) -> list[Problem]:
    try:
        kind = find_kind(device)
    except AutotuneError as error:
        return [dataclasses.replace(p, where="device") for p in error.problems]
    if kind.memory_bytes <= _MOST_MEMORY:
        return []
    what = f"no GPU has {format_bytes(kind.memory_bytes)}"
    hint = f"give what one GPU has, at most {format_bytes(_MOST_MEMORY)}"
    return [Problem(where="device", what=what, hint=hint)]


def _arguments(submission: Submission) -> list[str]:
    """Of `autotune plan`. Each value is an argument of its own, and none begins an option."""
    arguments = []
    for name in ("device", "devices", "nodes"):
        value = getattr(submission, name)
        if value not in (None, ""):
            arguments.append(f"--{name}={value}")
    return [*arguments, *(["--stack=installed"] if submission.stack == "installed" else [])]


def _model_name(model: str, config: str | None) -> str:
    if config is not None and Path(model).name == CONFIG:
        data = json.loads(config)
        return str((data.get("architectures") or [data["model_type"]])[0])[:256]
    parts = Path(model).parts
    return (model if len(parts) <= 2 else str(Path(*parts[-2:])))[:256]


def _without_folder(problem: Problem, folder: str) -> Problem:
    """A problem without the name of the folder in which the job was judged."""

    def clean(text: str | None) -> str | None:
        return None if text is None else re.sub(re.escape(folder) + "/?", "", text)

    what, where = clean(problem.what) or "", clean(problem.where) or ""
    return Problem(where=where.replace(f"{_NAME}.yaml", _NAME), what=what, hint=clean(problem.hint))
