"""A way out of a job that does not fit, and the answer that holds such ways. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import is_safe
from autotune.plan.questions.changes import Change
from autotune.space.knobs import Candidate

CLOSED_FORM = "closed form"
"""The method of an estimate without a trace."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A list of changes after which the job fits.

    Attributes:
        candidate: the fastest that is safe then, of those that were estimated.
        fields: of the job's file, as they are after the changes (`changed_fields`).
        packages: what it needs that is not on this machine.
    """

    changes: tuple[Change, ...]
    candidate: Candidate
    estimate: Estimate
    fields: Mapping[str, Any]
    packages: tuple[str, ...] = ()

    @property
    def learns_the_same(self) -> bool:
        """True if no change touches the learning."""
        return all(change.kind == "speed" for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A machine on which a job is safe as it is.

    Attributes:
        machine: its name, as `--device` takes it.
        peak_memory_bytes: on each device, of which `limit_bytes` may be taken.
    """

    machine: str
    peak_memory_bytes: int
    limit_bytes: int
    tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The ways out.

    Attributes:
        fits: whether the job fits as it is; it may still not be safe.
        nearest: its leanest candidate.
        ways: the cheapest first (`price`).
        tried: lists of changes that were estimated.
        ruled_out: lists whose weights, gradients and moments alone are more than the limit.
        holder: where no change is enough, the smallest machine on which the job is safe; None: none
            was looked for, or found.
    """

    fits: bool
    nearest: Candidate
    estimate: Estimate
    limit_bytes: int
    device: str
    ways: tuple[Way, ...]
    tried: int
    ruled_out: int = 0
    holder: Holder | None = None

    @property
    def safe(self) -> bool:
        """True if the job hardly ever runs out of memory as it is: there is nothing to change."""
        return self.fits and is_safe(self.estimate)


def price(way: Way) -> tuple[int, bool, bool, float]:
    """Return the sort key of a way: few changes first; of as many those on the devices that are
    there, then those that learn the same, then the fastest."""
    more = any(change.field == "devices" for change in way.changes)
    return len(way.changes), more, not way.learns_the_same, -(way.estimate.tokens_per_s or 0.0)


def is_checked(estimate: Estimate) -> bool:
    """True if a candidate is safe by a trace."""
    return is_safe(estimate) and estimate.method != CLOSED_FORM
