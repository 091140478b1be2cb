"""Flags of the trainer, against its file and in its place. Pure.

The flag wins: a file only sets defaults (`trl/scripts/utils.py`, `TrlParser`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from autotune.bundle.check.commands import Flags, Started, plain
from autotune.bundle.check.files import LaunchFiles, number, shown
from autotune.errors import Problem
from autotune.facts.stack import canonical_name

EQUAL = "make them equal, or take the flag out"
"""What to do about a flag."""


def trains(files: LaunchFiles) -> Iterator[tuple[Started, Flags]]:
    """The commands that read the trainer's file, as far as it is told."""
    for one in files.trainings:
        if one.told is not None and named(one.told.trains.get("config")) == files.trainer_file:
            yield one, one.told


def named(path: str | None) -> str | None:
    """The name of a file, where it is told in so many words, whatever its folder."""
    name = None if path is None else PurePosixPath(path).name
    return name if name is not None and plain(name) else None


def same(flag: str, value: Any) -> bool:
    """Whether a flag's text says what a file does."""
    if isinstance(value, bool):
        return truth(flag) == value
    if number(value) is not None:
        return number(flag) == number(value)
    if not isinstance(value, str):
        return True
    return flag.lower().replace(" ", "") == value.lower().replace(" ", "")


def truth(flag: str) -> bool | None:
    """A switch's value, as `trl/scripts/_hf_argparser.py` reads it; None for anything else."""
    text = flag.lower()
    return text not in ("no", "false", "f", "n", "0") if text in _TRUTHS else None


_TRUTHS = ("", "yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")


def _missing(files: LaunchFiles, flags: Flags) -> Iterator[tuple[str, Any]]:
    """(Field, value) of the trainer's file that flags fill in."""
    told = {canonical_name(str(name)) for name, value in files.trainer.items() if value is not None}
    for flag, text in flags.trains.items():
        name, value = positive(files, flag, text)
        if canonical_name(name) in told or name == "config" or not plain(value):
            continue
        may_be_switch = "bool" in files.types.get(name, "bool")
        switch = truth(value) if may_be_switch and not value.isdigit() else None
        yield name, value if switch is None else switch


def trained_by(files: LaunchFiles, one: Started) -> LaunchFiles:
    """The files with what a command's flags say where the trainer's file says nothing."""
    if one.told is None or all(told is not one.told for _, told in trains(files)):
        return files
    added = dict(_missing(files, one.told))
    given = {("trainer", name): f"{one.script}: --{name}" for name in added}
    trainer = {**files.trainer, **added}
    return replace(files, trainer=trainer, given={**files.given, **given})


def trainer_flags(files: LaunchFiles) -> Iterator[Problem]:
    """The trainer's flags against its file."""
    for one, flags in trains(files):
        for told, value in flags.trains.items():
            name, text = positive(files, told, value)
            own = {
                canonical_name(field): field for field in files.trainer if isinstance(field, str)
            }
            field = own.get(canonical_name(name))
            if field is None or not plain(text) or files.trainer[field] is None:
                continue
            said = files.trainer[field]
            by_name = name == "deepspeed" and isinstance(said, str)
            if by_name and named(text) in (None, named(said)):
                continue
            if not same(text, said):
                yield Problem(
                    where=f"{one.script}: --{told}",
                    what=f"is {shown(text or 'true')}, but {files.trainer_file} has {field}: "
                    f"{shown(said)}: the flag wins",
                    hint=EQUAL,
                )


def positive(files: LaunchFiles, name: str, value: str) -> tuple[str, str]:
    """(`bf16`, `false`) of `--no_bf16`."""
    if name.startswith("no_") and not value and name not in files.trainer:
        return name.removeprefix("no_"), "false"
    return name, value
