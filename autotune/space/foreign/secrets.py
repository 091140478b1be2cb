"""Values that neither a job nor a report may have. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.space.foreign.fields import Fate
from autotune.space.job_file.overrides import SECRETS

HIDDEN = "***"
_ENDS = ("_token", "_key", "_password", "_secret")
_OF_TEXT = ("bos", "cls", "eos", "image", "mask", "pad", "sep", "stop", "unk")
"""Tokens of a vocabulary."""


def is_secret(name: str) -> bool:
    """True if a field's name says that its value is one."""
    last = name.rpartition(".")[2].rpartition(" ")[2].lstrip("-").replace("-", "_").lower()
    if last.endswith(tuple(f"{word}_token" for word in _OF_TEXT)):
        return False
    return last in SECRETS or last.endswith(_ENDS)


def holds_secret(value: Any) -> bool:
    """True if a value has a field of that kind somewhere in it."""
    if isinstance(value, Mapping):
        return any(is_secret(str(name)) or holds_secret(part) for name, part in value.items())
    return isinstance(value, list) and any(map(holds_secret, value))


def without_secret(fate: Fate) -> Fate:
    """Return the same, `***` in place of a secret."""
    return replace(fate, value=_hidden(fate.field, fate.value))


def _hidden(name: str, value: Any) -> Any:
    if is_secret(name):
        return HIDDEN if isinstance(value, str | list | Mapping) else value
    if isinstance(value, Mapping):
        return {key: _hidden(str(key), inner) for key, inner in value.items()}
    return [_hidden(name, inner) for inner in value] if isinstance(value, list) else value
