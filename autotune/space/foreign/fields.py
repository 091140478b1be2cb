"""Fields of another tool: what each is in a job, and what became of it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

FateKind = Literal["carried", "searched", "left", "unknown"]
CARRIED: Final = "carried"
SEARCHED: Final = "searched"
LEFT: Final = "left"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The meaning of another tool's field in a job.

    Attributes:
        ours: a field of the job, a knob, or a training field; empty: none of them.
        value: what their value is in a job; None: the same.
        reason: why it is not carried, where it is none of ours.
    """

    ours: str = ""
    value: Callable[[Any], Any] | None = None
    reason: str = ""


def to(ours: str, value: Mapping[Any, Any] | Callable[[Any], Any] | None = None) -> Rule:
    """Return a field that a job has, too.

    Args:
        value: their values and ours (others stay), or a function from one to the other.
    """
    if isinstance(value, Mapping):
        known = dict(value)
        return Rule(ours=ours, value=lambda given: known.get(_key(given), given))
    return Rule(ours=ours, value=value)


def leave(reason: str) -> Rule:
    """Return a field that no job has, and why."""
    return Rule(reason=reason)


def leave_all(names: str, reason: str) -> dict[str, Rule]:
    """Return fields that no job has, for one reason."""
    return dict.fromkeys(names.split(), leave(reason))


def their_names(rules: Mapping[str, Rule]) -> dict[str, str]:
    """Return fields of a job -> what they are called there, of those whose values stay as they are;
    of several names the last."""
    return {rule.ours: name for name, rule in rules.items() if rule.ours and rule.value is None}


def _key(value: Any) -> Any:
    """Return a value as a table has it: `True` is not 1, and a word is in lower case."""
    if isinstance(value, str):
        return value.lower()
    return value if value is None or isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class Fate:
    """The place of one field in the job, or the reason why it has none.

    Attributes:
        field: its name, the parts of a nested one joined by dots.
        kind: `carried` into the job, `searched` in its place, `left` out for a reason, or
            `unknown`.
        detail: where it went, or why it did not.
    """

    field: str
    value: Any
    kind: FateKind
    detail: str


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

    def count(self, *kinds: FateKind) -> int:
        """Return how many fields came to one of these ends."""
        return sum(fate.kind in kinds for fate in self.fates)

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
