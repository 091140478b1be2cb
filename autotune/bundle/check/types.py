"""Values that are of no kind that their field can have. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.bundle.check.field_types import (
    LEAST,
    NEVER_NULL,
    Kind,
    accelerate_kinds,
    deepspeed_kinds,
    of_type,
)
from autotune.bundle.check.files import AUTO, LaunchFiles, shown, value_at
from autotune.errors import Problem
from autotune.facts.stack import canonical_name


def of_accelerate(files: LaunchFiles) -> Iterator[Problem]:
    """accelerate's file."""
    kinds = accelerate_kinds(files.fields)
    for path, value in _wrong(files.accelerate, kinds):
        if path != "mixed_precision" or value is not False:  # `precision` says what YAML made of it
            yield files.at_accelerate(path, *_what(value, kinds[path]))


def of_deepspeed(files: LaunchFiles) -> Iterator[Problem]:
    """DeepSpeed's file."""
    kinds = deepspeed_kinds(files.fields)
    for path, value in _wrong(files.deepspeed or {}, kinds):
        if value != AUTO:
            yield files.at_deepspeed(path, *_what(value, kinds[path]))


def of_trainer(files: LaunchFiles) -> Iterator[Problem]:
    """Yield the trainer's file, by the types that its source has."""
    for told, value in files.trainer.items():
        name, text = canonical_name(str(told)), files.types.get(str(told))
        if text is None:
            continue
        if name in NEVER_NULL:
            text = text.replace(" | None", "")
        kind = of_type(text, LEAST.get(name))
        if kind is not None and not kind.fits(value):
            yield files.at_trainer(name, *_what(value, kind))


def one_precision(files: LaunchFiles) -> Iterator[Problem]:
    """transformers refuses two of them."""
    if files.trainer.get("bf16") is True and files.trainer.get("fp16") is True:
        yield files.at_trainer("fp16", "is `true`, and so is bf16: it is refused", "keep one")


def _wrong(file: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[tuple[str, Any]]:
    """(Path, value) of what does not fit."""
    for path, kind in kinds.items():
        where, _, last = path.rpartition(".")
        inside = value_at(file, where) if where else file
        if isinstance(inside, Mapping) and last in inside and not kind.fits(inside[last]):
            yield path, inside[last]


def _what(value: Any, kind: Kind) -> tuple[str, str]:
    """(What is wrong, what to do)."""
    said = "`null`" if value is None else shown(value)
    if value is False and kind.fits("no"):
        return f"is {said}: YAML reads an unquoted `no` as false", "write 'no', quoted"
    return f"is {said}, but has to be {kind.words}", f"write {kind.words}, or take it out"


CHECKS = (of_accelerate, of_deepspeed, of_trainer, one_precision)
