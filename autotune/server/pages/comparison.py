"""Two works side by side: what they found, and the knobs that differ. Pure."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.server.store.values import Details


@dataclass(frozen=True)
class Row:
    """A knob of both; None: one has found nothing, or does not have it."""

    name: str
    values: tuple[Any, Any]

    @property
    def differs(self) -> bool:
        """True if it is another one."""
        return bool(self.values[0] != self.values[1])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two works have in common, and what not.

    Attributes:
        speed, memory: of the second over the first; None: one of them is not known.
        job: lines of the jobs, each with ` `, `-` or `+` before it.
        measured: of each, whether its numbers were measured.
    """

    rows: tuple[Row, ...]
    speed: float | None
    memory: float | None
    job: tuple[str, ...]
    measured: tuple[bool, bool]

    @property
    def differing(self) -> list[Row]:
        """Knobs that differ."""
        return [row for row in self.rows if row.differs]

    @property
    def equal(self) -> list[Row]:
        """Knobs that do not."""
        return [row for row in self.rows if not row.differs]


def compared(a: Details, b: Details) -> Comparison:
    """Return two works side by side."""
    first, second = knobs_of(a), knobs_of(b)
    names = sorted({*first, *second})
    lines = difflib.ndiff(a.job.splitlines(), b.job.splitlines())
    return Comparison(
        rows=tuple(Row(name, (first.get(name), second.get(name))) for name in names),
        speed=_ratio(a.tokens_per_s, b.tokens_per_s),
        memory=_ratio(a.peak_memory_bytes, b.peak_memory_bytes),
        job=tuple(line for line in lines if not line.startswith("?")),
        measured=(a.kind == "run", b.kind == "run"),
    )


def knobs_of(work: Details) -> Mapping[str, Any]:
    """Return the knobs that a work came to; none: it found nothing."""
    result = work.result or {}
    answer = result.get("answer") or result
    knobs = answer.get("knobs")
    return knobs if isinstance(knobs, dict) else {}


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b else None
