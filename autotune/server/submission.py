"""A submitted job: judged by its own rules and by the operator's, all problems at once, and turned
into a work."""

import copy
import dataclasses
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autotune.errors import AutotuneError, Problem, UserError
from autotune.facts.device_kinds import find_kind
from autotune.job.job import Job
from autotune.job.yaml_file import Path_, parse_yaml, to_yaml
from autotune.server.access.job_rules import CONFIG, PLACES, over_limits, refused_fields
from autotune.server.access.untrusted import (
    MOST_TEXT,
    check_data,
    check_text,
    check_yaml,
    model_config,
)
from autotune.server.settings import Allowed
from autotune.server.store.values import Kind, NewWork, Value
from autotune.space.foreign.owner import refuse_foreign
from autotune.space.job_file.load import Judged, judge_job
from autotune.space.job_file.problems import (
    Positions,
    field_positions,
    line_positions,
    position_of,
)
from autotune.units import format_bytes

_NAME = "job"
_MOST_PROBLEMS = 100
_REWARD = "accuracy_reward"
"""TRL's function that stands in for a refused one while the rest of the job is judged."""
_MOST_MEMORY = 4 * 2**40
"""Bytes of a GPU: several times the largest."""


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
    only_default: bool = False
    """Of a plan: the default candidate alone, pinned knobs as pinned."""
    priority: int = 0
    """The higher goes first; from -10 to 10."""
    parent: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """The work that this is a variation of."""


def accepted(
    kind: Kind,
    submission: Submission,
    allowed: Allowed,
    submitter: str,
    known: Sequence[Problem] = (),
) -> NewWork:
    """Return the work that a submission asks for.

    Args:
        known: problems that are known already.

    Raises:
        UserError: all problems of it. What the operator does not allow is not looked at: whether a
            file exists is not revealed to those who may not name it.
    """
    problems = [*_option_problems(kind, submission), *known]
    config = None
    if submission.model_config_json is not None:
        try:
            config = model_config(submission.model_config_json, CONFIG)
        except UserError as error:
            config, problems = "{}", [*error.problems, *problems]
    try:
        data, text, positions = _parsed(submission.job)
        _refuse_foreign(data)
    except UserError as error:
        raise UserError(*error.problems, *problems) from None
    rules = list(refused_fields(data, allowed, plan=kind == "plan", config=config is not None))
    judged = _judged(_without(data, [path for path, _ in rules]), positions, rules, config)
    job = judged.job
    if job is not None:
        rules += over_limits(job, allowed, kind, judged.unsound)
    placed = [_placed(path, problem, positions) for path, problem in rules]
    if job is None or placed or judged.problems or problems:
        raise UserError(*[*placed, *judged.problems, *problems][:_MOST_PROBLEMS])
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


def _parsed(job: str | dict[str, Any]) -> tuple[dict[str, Any], str, Positions]:
    """Return the job as data, as text, and the position of each part: a line of the text that came,
    or its field.

    Raises:
        UserError: it is too large, or not plain.
    """
    if isinstance(job, str):
        check_yaml(job, _NAME)
        data, lines = parse_yaml(job, _NAME)
        check_data(data, _NAME)
        return data, job, line_positions(lines, _NAME)
    check_data(job, _NAME)
    check_text(json.dumps(job), _NAME, MOST_TEXT)
    return job, to_yaml(job), field_positions(dict.fromkeys(Job.model_fields) | job)


def _placed(path: Path_, problem: Problem, positions: Positions) -> Problem:
    return dataclasses.replace(problem, where=position_of(path, positions) or problem.where)


def _without(data: dict[str, Any], paths: Sequence[Path_]) -> dict[str, Any]:
    """Return a job with harmless values in place of refused ones, so that the rest can be
    judged."""
    left = copy.deepcopy(data)
    for path in paths:
        if path[0] in PLACES:
            left[str(path[0])] = "unknown"
            continue
        parent: Any = left
        for part in path[:-1]:
            parent = parent[part]
        if path[0] == "reward_funcs":
            parent[path[-1]] = _REWARD if len(path) > 1 else [_REWARD]
        else:
            del parent[path[-1]]
    return left


def _refuse_foreign(data: dict[str, Any]) -> None:
    """Refuse another tool's file as a whole, before its fields are judged.

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


def _judged(
    data: dict[str, Any],
    positions: Positions,
    rules: Sequence[tuple[Path_, Problem]],
    config: str | None,
) -> Judged:
    """Judge the job by its own rules, in a folder that holds only the config that came with it."""
    with tempfile.TemporaryDirectory(prefix="autotune-job-") as scratch:
        folder = Path(scratch)
        if config is not None:
            (folder / CONFIG).write_text(config, encoding="utf-8")
        unsound = {str(path[0]) for path, _ in rules}
        judged = judge_job(data, positions, _NAME, folder, unsound)
    shown = [without_folder(problem, scratch) for problem in judged.problems]
    return dataclasses.replace(judged, problems=shown)


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
    """Return the arguments of `autotune plan`. Each value is part of its own argument, so that none
    can begin an option."""
    arguments = []
    for name in ("device", "devices", "nodes"):
        value = getattr(submission, name)
        if value not in (None, ""):
            arguments.append(f"--{name}={value}")
    if submission.stack == "installed":
        arguments.append("--stack=installed")
    if submission.only_default:
        arguments.append("--only-default")
    return arguments


def _model_name(model: str, config: str | None) -> str:
    if config is not None and Path(model).name == CONFIG:
        data = json.loads(config)
        return str((data.get("architectures") or [data["model_type"]])[0])[:256]
    parts = Path(model).parts
    return (model if len(parts) <= 2 else str(Path(*parts[-2:])))[:256]


def without_folder(problem: Problem, folder: str) -> Problem:
    """Return a problem without the name of a folder that was made for a check."""

    def clean(text: str) -> str:
        return re.sub(re.escape(folder) + "/?", "", text)

    hint = None if problem.hint is None else clean(problem.hint)
    return Problem(where=clean(problem.where), what=clean(problem.what), hint=hint)
