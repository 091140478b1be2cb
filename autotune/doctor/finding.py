"""What a check has found. Plain."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "unknown"]
"""`fail`: trainings do not work, or not as one would think; `warn`: some of them do not, or they
are slower; `unknown`: it could not be looked at."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        found: what was found.
        remedy: one line that a user can type or do; empty where nothing is wrong.
        source: where it was looked up, and how it is known that it matters.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    source: str


def count(findings: Iterable[Finding], state: State) -> int:
    """Return how many are in a state."""
    return sum(finding.state == state for finding in findings)
