"""Read the files of a launch from a folder, a bundle's or one that somebody wrote by hand."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.bundle.check.files import LaunchFiles, section
from autotune.errors import Problem, UserError, user_error
from autotune.job.methods import METHODS, Method
from autotune.job.text_file import is_readable
from autotune.job.yaml_file import check_size

_ACCELERATES = ("distributed_type", "compute_environment")
_TRAINERS = ("model_name_or_path", "per_device_train_batch_size", "output_dir", "learning_rate")
_LONG_NUMBER = re.compile(r"[0-9a-fA-F_]{300}")
MOST_BYTES = 2**20
"""Bytes of a file of a launch: real ones have a few thousand."""
_DEEPSPEEDS = ("zero_optimization", "train_micro_batch_size_per_gpu")


def read_launch(
    folder: Path,
    *,
    trainer: Path | None = None,
    accelerate: Path | None = None,
    deepspeed: Path | None = None,
    method: str | None = None,
    devices: int | None = None,
) -> LaunchFiles:
    """Return the files of a launch.

    Args:
        folder: where they lie.
        trainer, accelerate, deepspeed: their names in it, where there are several of a kind.
        method: of the training; by default the one that the trainer's file is named after.
        devices: how many processes train; by default what accelerate's file says.

    Raises:
        UserError: a file is not there, cannot be read, or there are several of its kind.
    """
    if not folder.is_dir():
        raise user_error("there is no such folder", where=str(folder))
    contents, problems = _read_all(folder, [trainer, accelerate, deepspeed])
    alone = accelerate is None and _is_alone(contents, folder, deepspeed)
    launch = (
        None
        if alone
        else _file_of_kind(contents, folder, _ACCELERATES, accelerate, "accelerate", problems)
    )
    rest = {path: data for path, data in contents.items() if path != launch}
    trains = _file_of_kind(rest, folder, _TRAINERS, trainer, "trainer", problems)
    if problems or (launch is None and not alone) or trains is None:
        raise UserError(*problems)
    launches = {} if launch is None else contents[launch]
    named = section(launches, "deepspeed_config").get("deepspeed_config_file")
    named = named or contents[trains].get("deepspeed")
    inside = named if isinstance(named, Mapping) else None
    theirs = None if inside is not None else _deepspeeds(contents, folder, deepspeed, named)
    if theirs is not None and theirs not in contents:
        contents[theirs] = _read(theirs)
    name = theirs.name if theirs else Path(str(named or "deepspeed.json")).name
    return LaunchFiles(
        trainer=contents[trains],
        accelerate=launches,
        alone=alone,
        deepspeed=contents[theirs] if theirs else inside,
        method=_method(method, trains),
        devices=devices,
        trainer_file=trains.name,
        accelerate_file="accelerate" if launch is None else launch.name,
        deepspeed_file=name if inside is None else f"{trains.name}: deepspeed",
    )


def _is_alone(
    contents: Mapping[Path, Mapping[str, Any]], folder: Path, deepspeed: Path | None
) -> bool:
    """True if DeepSpeed's file lies beside the trainer's, and none of accelerate's."""
    if any(_marked(contents, _ACCELERATES)):
        return False
    named = any(data.get("deepspeed") for data in contents.values())
    return named or _deepspeeds(contents, folder, deepspeed, None) is not None


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds; empty where it holds something else.

    Raises:
        UserError: it cannot be read.
    """
    try:
        if path.exists() and not is_readable(path, MOST_BYTES):
            raise ValueError(f"it must be a file of at most {MOST_BYTES // 2**20} MiB")
        text = path.read_text(encoding="utf-8")
        if _LONG_NUMBER.search(text):
            raise ValueError("it has a number of more than 300 digits")
        check_size(text if path.suffix != ".json" else "")
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except RecursionError:
        raise user_error("cannot be read: it is nested without end", where=str(path)) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        what = f"cannot be read: {_in_one_line(error)}"
        raise user_error(what, where=str(path), hint=_repair(path, error)) from None
    return data if isinstance(data, dict) else {}


def _repair(path: Path, error: Exception) -> str:
    """Return what to do about a file that cannot be read."""
    if isinstance(error, OSError):
        return "make it readable, or name another file"
    right = "correct that place"
    if path.suffix == ".json":
        right += " (JSON has no comments, and no comma behind the last value)"
    return f"{right}, or take the file out of the folder if it does not belong to the launch"


def _in_one_line(error: Exception) -> str:
    """Return an error in one line, with the line of the file where it is known."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None)}"
    return str(error).splitlines()[0]


def _read_all(
    folder: Path, given: list[Path | None]
) -> tuple[dict[Path, dict[str, Any]], list[Problem]]:
    """Return all YAML and JSON files of the folder, and those that were named.

    A file that cannot be read is a problem: it may be the one that is meant.
    """
    files = (path for path in folder.iterdir() if path.is_file())
    own = (path for path in files if path.suffix in (".yaml", ".yml", ".json"))
    paths = sorted({*own, *(folder / path for path in given if path is not None)})
    contents: dict[Path, dict[str, Any]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            contents[path] = _read(path)
        except UserError as error:
            problems += error.problems
    return contents, problems


def _file_of_kind(
    contents: Mapping[Path, Mapping[str, Any]],
    folder: Path,
    marks: tuple[str, ...],
    given: Path | None,
    kind: str,
    problems: list[Problem],
) -> Path | None:
    """Return the file of a kind, by its name or by its fields; problems are added to `problems`."""
    if given is not None:
        if contents.get(folder / given):
            return folder / given
        if not any(problem.where == str(folder / given) for problem in problems):
            problems.append(Problem(where=str(folder / given), what="is not a mapping of settings"))
        return None
    paths = list(_marked(contents, marks))
    if len(paths) == 1:
        return paths[0]
    which = ", ".join(path.name for path in paths)
    what = f"several files could be {kind}'s: {which}" if paths else f"no {kind} file was found"
    hint = f"name it: --{kind} FILE"
    problems.append(Problem(where=str(folder), what=what, hint=hint))
    return None


def _marked(contents: Mapping[Path, Mapping[str, Any]], marks: tuple[str, ...]) -> Iterator[Path]:
    """Yield the YAML files that have a field of a kind."""
    for path, data in contents.items():
        if path.suffix != ".json" and set(marks) & set(data):
            yield path


def _deepspeeds(
    contents: Mapping[Path, Mapping[str, Any]], folder: Path, given: Path | None, named: Any
) -> Path | None:
    """Return DeepSpeed's file: the one named here, or by the other files, or the only one."""
    if given is not None:
        return folder / given
    if named is not None:
        # Where it is said to be, or beside the others: a bundle may have been moved.
        paths = (folder / str(named), folder / Path(str(named)).name)
        return next((path for path in paths if is_readable(path, sys.maxsize)), None)
    kinds = [
        p for p, data in contents.items() if p.suffix == ".json" and set(_DEEPSPEEDS) & set(data)
    ]
    return kinds[0] if len(kinds) == 1 else None


def _method(given: str | None, trainer: Path) -> Method | None:
    """Return the method that is given, or that the trainer's file is named after."""
    named = next((m for m in METHODS.values() if m.config_file == trainer.name), None)
    return METHODS[given] if given else named
