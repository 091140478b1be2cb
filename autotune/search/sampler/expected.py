"""A sampler's knowledge of a candidate before any probe. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Params = Mapping[str, Any]
"""The value of every free knob, as Optuna stores it."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The estimate of one candidate.

    Attributes:
        speed: what is expected, above 0 and more is better, also where a study minimises times.
        shares: parts of the expected time by kind of work, adding up to 1: what the errors of
            candidates have in common follows them. May be empty.
        peak_bytes: memory, without what a device's processes take beside it (the sampler's
            `Residual`).
        relative_sigma: how uncertain `peak_bytes` is by itself, relative to it.
    """

    speed: float | None = None
    shares: tuple[float, ...] = ()
    peak_bytes: float | None = None
    relative_sigma: float = 0.0

    def check(self) -> None:
        """Refuse values that no device can have.

        Raises:
            ValueError: a speed or a peak is no finite number above 0.
        """
        for name in ("speed", "peak_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be a finite number above 0, but got {value}")


NOTHING_KNOWN = Expected()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A measured speed beside the expected one, of a candidate of this or of an earlier study.

    Attributes:
        log_speed: natural logarithm of the measured objective.
        sd: standard deviation of that.
    """

    params: Params
    expected: Expected
    log_speed: float
    sd: float


def key_of(params: Params) -> tuple[tuple[str, str], ...]:
    """Return a key of parameters: equal parameters have equal keys."""
    return tuple(sorted((name, _label(value)) for name, value in params.items()))


def _label(value: Any) -> str:
    """Return the label of a value; equal numbers have the same."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return repr(value)


def names_of(all_params: Sequence[Params]) -> list[str]:
    """Return every name that occurs in any of them, in order."""
    return sorted({name for params in all_params for name in params})
