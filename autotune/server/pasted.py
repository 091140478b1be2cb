"""A job as it was pasted: our own, another tool's file, or the config.json of a model.

Another tool's file becomes a job as on the command line, but for what it names: no file of it is
read, and no path looked for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import Problem, UserError, in_one_line, user_error
from autotune.facts.known_models import known_shape
from autotune.job.job import Job
from autotune.job.methods import METHODS, SFT
from autotune.job.yaml_file import Path_, parse_scalar, parse_yaml, to_yaml
from autotune.server.access.job_rules import CONFIG
from autotune.server.access.untrusted import (
    MOST_TEXT,
    check_data,
    check_text,
    check_yaml,
    model_config,
)
from autotune.space.foreign.fields import comments
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from autotune.space.foreign.readers import fields_of, method_of
from autotune.space.foreign.tool import MODEL, TRL, is_registry, part_of, tool_of
from autotune.space.job_file.flags import LENGTH, PROMPT, completed
from autotune.space.job_file.given_file import lines_of
from autotune.space.job_file.problems import Positions, field_positions, line_positions

NAME = "job"
_OF_DATA = ("columns", "dataset_config", "dataset_train_split", "dataset_test_split")
_FLAG = re.compile(r"`--([\w-]+)[^`]*`")
_MISSING = (
    "paste the trainer's file, or a job: how devices share the training is searched, and "
    "`fixed: {zero_stage: 3}` or `fixed: {distributed_type: FSDP}` says it"
)


@dataclass(frozen=True, kw_only=True)
class Pasted:
    """A job as it came.

    Attributes:
        data: its fields.
        text: its file; empty: it was made of something else, or came as data.
        positions: where each part stands.
        config: the config.json that was pasted in place of a job.
        made: what a file that was made of something else begins with, line by line.
    """

    data: dict[str, Any]
    positions: Positions
    text: str = ""
    config: str | None = None
    made: tuple[str, ...] = ()

    def file(self, data: dict[str, Any], changed: Sequence[str]) -> str:
        """Return the job file of these fields: as it was pasted, where only places differ.

        Args:
            changed: what is said of changes.

        Raises:
            UserError: it is too long.
        """
        text = self.text
        for name in self.data.keys() & data.keys():
            if self.data[name] != data[name]:
                text = text.replace(f"{name}: {self.data[name]}", f"{name}: {data[name]}", 1)
        if not text or (data != self.data and parse_yaml(text, NAME)[0] != data):
            text = "".join(f"# {line}\n" for line in (*self.made, *changed)) + to_yaml(data)
        check_text(text, NAME, 2 * MOST_TEXT)
        return text


def pasted(job: str | dict[str, Any], devices: int | None, nodes: int | None) -> Pasted:
    """Return a job as it came, its size and form checked.

    Args:
        devices, nodes: so many train, where another tool's file leaves that open.

    Raises:
        UserError: it is too large, not plain, or makes no job.
    """
    twice: list[Problem] = []
    if isinstance(job, str):
        check_yaml(job, NAME)
        text = job.replace("\t", " ") if job.lstrip().startswith("{") else job
        data, lines = parse_yaml(text, NAME, twice=twice)
        check_data(data, NAME)
        came = Pasted(data=data, text=text, positions=line_positions(lines, NAME))
    else:
        check_data(job, NAME)
        lines = {}
        positions = field_positions(dict.fromkeys(Job.model_fields) | job)
        came = Pasted(data=job, positions=positions)
    if tool_of(came.data) is not None:
        file = GivenFile(name=NAME, data=came.data, twice=tuple(twice))
        return _imported(file, Wishes(devices=devices, nodes=nodes), lines)
    part = "LLaMA-Factory's data sets" if is_registry(came.data) else part_of(came.data)
    if part == MODEL:
        return _of_config(came.data)
    if part is not None:
        raise user_error(f"a configuration of {part}, not a job", where=NAME, hint=_MISSING)
    if twice:
        raise UserError(*twice)
    return came


def _imported(file: GivenFile, wishes: Wishes, lines: dict[Path_, int]) -> Pasted:
    """Return the job of another tool's file."""
    owner = tool_of(file.data)
    assert owner is not None
    assumed = []
    if owner.file == TRL and method_of(owner, fields_of(owner, file.data)) is None:
        wishes = replace(wishes, method=SFT.name)
        assumed = [f"method: {SFT.name} (the file does not say it)"]
    found = import_job([file], wishes)
    check_data(found.job, NAME)
    listed = [_FLAG.sub(_field, line) for line in comments(found, assumed)]
    return Pasted(
        data=found.job,
        positions=line_positions(lines_of(found, lines), NAME) if lines else {},
        made=(f"Made of a file of {found.tool}.", *listed),
    )


def _of_config(data: dict[str, Any]) -> Pasted:
    """Return the job of a model's config.json, with what flags alone assume."""
    sets, assumed = completed([f"model={CONFIG}"])
    pairs = (text.partition("=") for text in sets)
    job = {name: parse_scalar(value) for name, _, value in pairs}
    return Pasted(
        data=job,
        positions=field_positions(dict.fromkeys(Job.model_fields) | job),
        config=model_config(data, CONFIG),
        made=("Made of a config.json.", *(f"Assumed: {_FLAG.sub(_field, a)}." for a in assumed)),
    )


def _field(flag: re.Match[str]) -> str:
    """Return a flag as the field of a job: `--tuning full` -> `tuning: full`."""
    name, _, value = flag[0].strip("`-").replace("devices ", "devices.count ").partition(" ")
    return f"`{name.replace('-', '_')}{': ' * bool(value)}{value}`"


def planned(
    job: dict[str, Any], refused: Sequence[tuple[Path_, Problem]]
) -> tuple[dict[str, Any], list[str]]:
    """Return another tool's job as it can be planned, and what was changed, as comments.

    A mirror's name becomes that of the built-in model, rows of full length stand for data that are
    refused, and training fields that are refused are left out.
    """
    data, changed = dict(job), []
    paths = [path for path, _ in refused]
    lost = [str(path[1]) for path in paths if path[0] == "training" and len(path) > 1]
    if lost:
        data["training"] = {k: value for k, value in data["training"].items() if k not in lost}
        changed.append(f"Not taken over HTTP: {', '.join(lost)}")
    known = known_shape(str(data["model"])) if ("model",) in paths else None
    if known is not None:
        changed.append(f"{data['model']} is planned as {known.hub_id}.")
        data["model"] = known.hub_id
    if ("dataset",) in paths:
        online = METHODS[data["method"]].online
        length = PROMPT if online else data.get("max_length") or LENGTH
        changed.append(f"{data['dataset']} is not read here: rows of {length} tokens stand for it.")
        data = {name: value for name, value in data.items() if name not in _OF_DATA}
        data["dataset"] = {"lengths": {"max": length}}
    return data, [in_one_line(line)[:400] for line in changed]
