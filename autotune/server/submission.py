"""A submitted job: judged by its own rules and by the operator's, all problems at once, and turned
into a work."""

import copy
import dataclasses
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autotune.errors import AutotuneError, Problem, UserError
from autotune.facts.device_kinds import DeviceKind, find_kind
from autotune.facts.machines import machines_of, names_several
from autotune.facts.prices import LISTED, prices_of
from autotune.job.job import Job
from autotune.job.yaml_file import Path_
from autotune.report.machines import limits_of
from autotune.server.access.job_rules import (
    CONFIG,
    PLACES,
    over_limits,
    refused_fields,
    with_places,
)
from autotune.server.access.untrusted import model_config
from autotune.server.pasted import NAME, pasted, planned
from autotune.server.settings import Allowed
from autotune.server.store.values import Kind, NewWork, Value
from autotune.space.job_file.load import judge_job
from autotune.space.job_file.problems import Positions, position_of
from autotune.units import format_bytes

_MOST_PROBLEMS = 100
_REWARD = "accuracy_reward"
"""TRL's function that stands in for a refused one while the rest of the job is judged."""
_MOST_MEMORY = 4 * 2**40
"""Bytes of a GPU: several times the largest."""
_MOST_MACHINES = 24
"""Machines that a service plans at once."""
_LOG = logging.getLogger(__name__)


class Submission(Value):
    """A job to plan or to run."""

    job: str | dict[str, Any]
    """The job file as YAML text, or as an object; a file of another tool (Axolotl, LLaMA-Factory,
    TRL, Unsloth, torchtune) or a bare config.json is made into one."""
    model_config_json: str | dict[str, Any] | None = None
    """A config.json that the job names as `model: config.json`."""
    device: str | None = Field(default=None, max_length=500)
    """Of a plan: the GPU to plan for (`h200`, `RTX 3070`, `memory=24GiB`), or `cpu`; several to
    compare them (`h100,4xl40s`, `all`); null: the worker's own."""
    devices: int | None = None
    """Of a plan: how many, in place of the job's."""
    nodes: int | None = None
    """Of a plan: on how many machines."""
    prices: str | None = Field(default=None, max_length=100)
    """Of a plan for several: `listed`, the dated table in the package; null: nothing is priced."""
    deadline: str | None = Field(default=None, max_length=20)
    """Of a plan for several: the time that the training may take, such as `20h`."""
    at_most: str | None = Field(default=None, max_length=20)
    """Of a plan for several: the money that it may cost, such as `50$`."""
    stack: str = "any"
    """Of a plan: `any` package that its GPU can use, or only those that are `installed`."""
    only_default: bool = False
    """Of a plan: the default candidate alone, pinned knobs as pinned."""
    parent: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """The work that this is a variation of."""

    @property
    def limits(self) -> list[str]:
        """The names of the fields that compare machines."""
        return [name for name in ("prices", "deadline", "at_most") if getattr(self, name)]

    @property
    def compares(self) -> bool:
        """True if it compares machines, be it one."""
        return bool(self.device) and (names_several(self.device) or bool(self.limits))


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
    config, problems = _sent_config(submission.model_config_json)
    problems += [*_option_problems(kind, submission), *known]
    try:
        came = pasted(submission.job, submission.devices, submission.nodes)
    except UserError as error:
        raise UserError(*error.problems, *problems) from None
    config, plan = came.config or config, kind == "plan"
    lost: list[str] = []
    sent = config is not None
    data = with_places(came.data, allowed.folders, config=sent)
    rules = list(refused_fields(data, allowed, plan=plan, config=sent))
    if came.made and plan:
        data, lost = planned(data, rules)
        rules = list(refused_fields(data, allowed, plan=plan, config=sent))
    with tempfile.TemporaryDirectory(prefix="autotune-job-") as scratch:
        folder = Path(scratch)
        if config is not None:
            (folder / CONFIG).write_text(config, encoding="utf-8")
        paths = [path for path, _ in rules]
        unsound = {str(path[0]) for path in paths}
        judged = judge_job(_without(data, paths), came.positions, NAME, folder, unsound)
        job = judged.job
        if job is not None:
            rules += over_limits(job, allowed, kind, judged.unsound)
        placed = [_placed(path, problem, came.positions) for path, problem in rules]
        problems = [*placed, *(_without_folder(p, scratch) for p in judged.problems), *problems]
        if job is None or problems:
            raise UserError(*problems[:_MOST_PROBLEMS])
        first = _first_line(job, submission) if plan else None
    device = submission.device or ""
    return NewWork(
        kind=kind,
        job=came.file(data, lost),
        model_config_json=config,
        arguments=_arguments(submission),
        method=job.method,
        model=_model_name(job.model, config),
        device=device if len(device) <= 128 else f"{device[:127]}…",
        device_kind=job.devices.kind,
        device_count=job.devices.total,
        submitter=submitter,
        parent=submission.parent,
        first_line=first,
    )


def _sent_config(config: str | dict[str, Any] | None) -> tuple[str | None, list[Problem]]:
    """Return the config.json that came with a job, and what is wrong with it."""
    try:
        return None if config is None else model_config(config, CONFIG), []
    except UserError as error:
        return "{}", list(error.problems)


def _first_line(job: Job, submission: Submission) -> str | None:
    """Return the best choice by formula, in words; None: there is none, or machines are compared.
    Nothing that goes wrong here is wrong with the job."""
    device, several = submission.device, submission.compares
    if not device or several or device == "cpu" or submission.only_default or job.recipe:
        return None
    from autotune.plan.first_estimate import first_estimate
    from autotune.report.progress_lines import first_text
    from autotune.space.definition import load_definition

    counts = {"count": submission.devices, "nodes": submission.nodes}
    counts = {name: count for name, count in counts.items() if count is not None}
    job = job.model_copy(update={"devices": job.devices.model_copy(update=counts)})
    try:
        definition, assume = load_definition(job.method), submission.stack == "any"
        first = first_estimate(job, definition, find_kind(device), assume=assume)
        return None if first is None else first_text(first)
    except Exception:
        _LOG.exception("there is no first line by formula")
        return None


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


def _option_problems(kind: Kind, submission: Submission) -> Iterator[Problem]:
    if submission.compares:
        yield from _machine_problems(submission)
    elif submission.device and submission.device != "cpu":
        yield from _kind_problems(submission.device)
    elif submission.limits:
        hint = "name some: `h100,l40s`, or `all`"
        yield Problem(where="device", what="machines are compared, but none is named", hint=hint)
    if submission.stack not in ("any", "installed"):
        yield Problem(where="stack", what="must be `any` or `installed`")
    for name, most in (("devices", 4096), ("nodes", 1024)):
        value = getattr(submission, name)
        if value is not None and not 1 <= value <= most:
            yield Problem(where=name, what=f"must be from 1 to {most}, but got {value}")
    if kind == "run" and (submission.device or submission.devices or submission.nodes):
        what = "a run measures on the worker's own devices"
        hint = "leave device, devices and nodes out; `devices:` of the job says how many"
        yield Problem(where="device", what=what, hint=hint)


def _kind_problems(device: str) -> Iterator[Problem]:
    try:
        yield from _too_large([find_kind(device)])
    except AutotuneError as error:
        yield from (dataclasses.replace(p, where="device") for p in error.problems)


def _too_large(kinds: Sequence[DeviceKind]) -> Iterator[Problem]:
    for kind in kinds:
        if kind.memory_bytes > _MOST_MEMORY:
            what = f"no GPU has {format_bytes(kind.memory_bytes)}"
            hint = f"give what one GPU has, at most {format_bytes(_MOST_MEMORY)}"
            yield Problem(where="device", what=what, hint=hint)


def _machine_problems(submission: Submission) -> Iterator[Problem]:
    try:
        machines = machines_of(submission.device or "")
        yield from _too_large([machine.kind for machine in machines])
        if len(machines) > _MOST_MACHINES:
            what = f"{len(machines)} machines are named, and at most {_MOST_MACHINES} are planned"
            yield Problem(where="device", what=what, hint="name fewer")
    except UserError as error:
        yield from (dataclasses.replace(p, where="device") for p in error.problems)
    if submission.only_default:
        what = "it is of one device, but several are compared"
        yield Problem(where="only_default", what=what, hint="name one device, or leave it out")
    if submission.prices not in (None, "", LISTED):
        what = f"`{submission.prices}`: a service knows the `{LISTED}` prices alone"
        hint = f"write `{LISTED}`; `autotune plan` on your machine takes a file of prices"
        yield Problem(where="prices", what=what, hint=hint)
    if submission.at_most and not submission.prices:
        hint = f"add `prices: {LISTED}`"
        yield Problem(where="at_most", what="no prices are known", hint=hint)
    for deadline, at_most in (
        (submission.deadline or None, None),
        (None, submission.at_most or None),
    ):
        try:
            limits_of(deadline, at_most, prices_of(LISTED))
        except UserError as error:
            yield from error.problems


def _arguments(submission: Submission) -> list[str]:
    """Return the arguments of `autotune plan`. Each value is part of its own argument, so that none
    can begin an option."""
    named = ("device", "devices", "nodes", "prices", "deadline", "at_most")
    values = ((name.replace("_", "-"), getattr(submission, name)) for name in named)
    arguments = [f"--{name}={value}" for name, value in values if value not in (None, "")]
    arguments += ["--stack=installed"] if submission.stack == "installed" else []
    return arguments + (["--only-default"] if submission.only_default else [])


def _model_name(model: str, config: str | None) -> str:
    if config is not None and Path(model).name == CONFIG:
        data = json.loads(config)
        return str((data.get("architectures") or [data["model_type"]])[0])[:256]
    parts = Path(model).parts
    return (model if len(parts) <= 2 else str(Path(*parts[-2:])))[:256]


def _without_folder(problem: Problem, folder: str) -> Problem:
    """Return a problem without the name of a folder that was made for a check."""

    def clean(text: str) -> str:
        return re.sub(re.escape(folder) + "/?", "", text)

    hint = None if problem.hint is None else clean(problem.hint)
    return Problem(where=clean(problem.where), what=clean(problem.what), hint=hint)
