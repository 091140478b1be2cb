"""Fields of a bundle under the names of another tool. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml

from autotune.bundle.formats.launched import Launched
from autotune.space.foreign.fields import Rule, their_names

_SILENT = frozenset({"eval_strategy", "dataset_test_split", "dataset_text_field", "use_cpu"})
"""What means nothing where nothing is evaluated, or what the other tool sees by itself."""
_USUAL = ("random", "bfd")
"""Values that are no choice: every tool shuffles, and packs its way."""


@dataclass(frozen=True, kw_only=True)
class Renaming:
    """Fields by the other tool's names.

    Attributes:
        values: its names and the values.
        lost: ours that it has no name for, and why.
    """

    values: Mapping[str, Any]
    lost: Mapping[str, str]

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        rules: Mapping[str, Rule],
        kept: frozenset[str],
        handled: frozenset[str],
    ) -> Self:
        """Return the fields of a configuration.

        Args:
            rules: how the other tool's fields are read.
            kept: fields that are called the same, whatever other names are read, too.
            handled: fields that somebody else sees to.
        """
        names = {**their_names(rules), **dict(zip(kept, kept, strict=True))}
        values: dict[str, Any] = {}
        lost: dict[str, str] = {}
        for name, value in config.items():
            if name in handled | _SILENT:
                continue
            if name in names:
                values[names[name]] = value
            elif value and value not in _USUAL:
                lost[name] = "it has no such field"
        return cls(values=values, lost=lost)


def not_said(bundle: Launched) -> dict[str, str]:
    """Return what a bundle's launch sets beside its files."""
    return {
        name: f"set it where the training starts: {name}={value}"
        for name, value in bundle.environment.items()
    }


def as_yaml(theirs: Mapping[str, Any], head: str) -> str:
    """Return a file of the other tool."""
    kept = {name: value for name, value in theirs.items() if value is not None}
    body = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100)
    return f"# Written by autotune.\n{head}\n{body}"
