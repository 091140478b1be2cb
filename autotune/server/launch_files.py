"""Files of a launch that came as text, held against each other."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.bundle.check.check import disagreements
from autotune.bundle.check.read import read_launch
from autotune.errors import Problem, UserError, nearest, user_error
from autotune.job.methods import METHODS
from autotune.server.access.plain import MOST_TEXT, check_data, check_text, check_yaml
from autotune.server.store.values import Value

ACCELERATE, DEEPSPEED = "accelerate.yaml", "deepspeed.json"


class Files(Value):
    """The files of a launch, each as text."""

    trainer: str
    """The YAML of the training arguments."""
    accelerate: str
    """The YAML that `accelerate launch` reads."""
    deepspeed: str | None = None
    """The JSON that DeepSpeed reads."""
    method: str
    """The training method, such as `sft`."""


def problems_of(files: Files) -> list[Problem]:
    """Return where the files disagree.

    Raises:
        UserError: a file cannot be read, or names one that did not come along: nothing else on this
            machine is looked at.
    """
    method = METHODS.get(files.method)
    if method is None:
        hint = nearest(files.method, METHODS)
        raise user_error(f"there is no method `{files.method}`", where="method", hint=hint)
    trainer, accelerate = _yaml(files.trainer, "trainer"), _yaml(files.accelerate, "accelerate")
    if files.deepspeed is None:
        _refuse_named(trainer, accelerate)
    else:
        _check_json(files.deepspeed)
    with tempfile.TemporaryDirectory(prefix="autotune-check-") as scratch:
        folder = Path(scratch)
        (folder / method.config_file).write_text(files.trainer, encoding="utf-8")
        (folder / ACCELERATE).write_text(files.accelerate, encoding="utf-8")
        if files.deepspeed is not None:
            (folder / DEEPSPEED).write_text(files.deepspeed, encoding="utf-8")
        try:
            launch = read_launch(
                folder,
                trainer=Path(method.config_file),
                accelerate=Path(ACCELERATE),
                deepspeed=None if files.deepspeed is None else Path(DEEPSPEED),
                method=method.name,
            )
        except UserError as error:
            raise UserError(*(_without(problem, scratch) for problem in error.problems)) from None
        return list(disagreements(launch))


def _yaml(text: str, where: str) -> Mapping[str, Any]:
    """Return what a file holds, as the check will read it.

    Raises:
        UserError: it is too large or not plain, or no YAML.
    """
    check_yaml(text, where)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise user_error(f"cannot be read: {reason[0]}", where=where) from None
    check_data(data, where)
    return data if isinstance(data, Mapping) else {}


def _check_json(text: str) -> None:
    check_text(text, "deepspeed", MOST_TEXT)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise user_error(f"cannot be read: {error}", where="deepspeed") from None
    check_data(data, "deepspeed")


def _refuse_named(trainer: Mapping[str, Any], accelerate: Mapping[str, Any]) -> None:
    section = accelerate.get("deepspeed_config")
    named: Any = section.get("deepspeed_config_file") if isinstance(section, Mapping) else None
    named = named or trainer.get("deepspeed")
    if isinstance(named, str):
        hint = "send its text as `deepspeed`"
        raise user_error(
            f"DeepSpeed's file {named} did not come along", where="deepspeed", hint=hint
        )


def _without(problem: Problem, folder: str) -> Problem:
    where = problem.where.replace(f"{folder}/", "").replace(folder, "")
    return Problem(where=where, what=problem.what.replace(folder, ""), hint=problem.hint)
