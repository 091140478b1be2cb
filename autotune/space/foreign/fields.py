"""What became of each field of another tool, and the commented job file of them. Pure."""

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from autotune.errors import in_one_line
from autotune.job.yaml_file import to_yaml
from autotune.space.job_file.overrides import SECRETS

FateKind = Literal["carried", "searched", "left", "unknown"]
CARRIED: Final = "carried"
SEARCHED: Final = "searched"
LEFT: Final = "left"
UNKNOWN: Final = "unknown"
LEARNING, MEMORY, SPEED, NOTHING = EFFECTS = ("learning", "memory", "speed", "nothing")
"""What changes where a field is not carried, the gravest first."""
HIDDEN = "***"
_ENDS = ("_token", "_key", "_password", "_secret")
_OF_TEXT = ("bos", "cls", "eos", "image", "mask", "pad", "sep", "stop", "unk")
"""Tokens of a vocabulary."""
_WIDTH = 94


@dataclass(frozen=True, kw_only=True)
class Fate:
    """The place of one field in the job, or what it changes that it has none.

    Attributes:
        field: its name, the parts of a nested one joined by dots.
        kind: `carried` into the job, `searched` in its place, `left` out, or `unknown`.
        detail: where it went, or why it did not.
        changes: what may change as it is left out, of `EFFECTS`; empty where it is not.
    """

    field: str
    value: Any
    kind: FateKind
    detail: str
    changes: str = ""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A job made of files or of a command of another tool.

    Attributes:
        tool: whose they are.
        job: the fields of a job file, not judged yet.
        fates: every field that was given, once.
        assumed: what nothing given says, as sentences.
        origins: where in the job a field came to be -> its name.
    """

    tool: str
    job: dict[str, Any]
    fates: tuple[Fate, ...]
    assumed: tuple[str, ...]
    origins: Mapping[tuple[str, ...], str]

    def __post_init__(self) -> None:
        """Drop what is assumed of rows where the job names its data after all (`--dataset`)."""
        if not isinstance(self.job.get("dataset"), Mapping):
            kept = tuple(t for t in self.assumed if not t.startswith("dataset: every row"))
            object.__setattr__(self, "assumed", kept)

    def count(self, *kinds: FateKind) -> int:
        """Return how many fields came to one of these ends."""
        return sum(fate.kind in kinds for fate in self.fates)

    @property
    def lost(self) -> list[Fate]:
        """Fields that are not carried, by what they change; of an unknown one nobody knows."""
        order = (LEARNING, MEMORY, SPEED, "", NOTHING)
        lost = [fate for fate in self.fates if fate.kind in (LEFT, UNKNOWN)]
        return sorted(lost, key=lambda fate: order.index(fate.changes))

    @property
    def summary(self) -> str:
        """Summary of an import, in one line."""
        carried, searched = self.count(CARRIED), self.count(SEARCHED)
        total = len(self.fates)
        more = f", {searched} searched instead" if searched else ""
        return f"read as a configuration of {self.tool}: {carried} of {total} fields carried{more}"

    def line(self, file: str) -> str:
        """Return what is said where a file was read as a job."""
        given = self.job.get("devices", {})
        devices = given.get("count", 1) * given.get("nodes", 1)
        batch = self.job.get("global_batch_size")
        more = f"; global batch {batch}, {devices} device{'s' if devices != 1 else ''}"
        return f"{self.summary}{more}; `autotune import {file}` lists them"


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


def job_text(found: Imported, sources: str) -> str:
    """Return the job file, with what is not in it as comments.

    Args:
        sources: the files, or the command, that it was made of.
    """
    lines = [
        f"Made by `autotune import` of {in_one_line(sources)}.",
        "What this file names is relative to it; docs/job.md has all fields.",
        *comments(found),
    ]
    return "".join(f"# {line}\n" for line in lines) + to_yaml(found.job)


def comments(found: Imported, assumed: Iterable[str] = ()) -> Iterator[str]:
    """Yield, line by line, what was not carried and what was assumed (`assumed` besides)."""
    lost = [
        f"{detail}: {', '.join(fate.field for fate in fates)}"
        for detail, fates in itertools.groupby(found.lost, lambda fate: fate.detail)
    ]
    lists = {"Not carried, by what it may change:": lost, "Assumed:": [*found.assumed, *assumed]}
    for title, entries in lists.items():
        if entries:
            yield title
        for entry in entries:
            yield from textwrap.wrap(
                in_one_line(entry), _WIDTH, initial_indent="- ", subsequent_indent="  "
            )
