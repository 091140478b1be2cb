"""Which of the fastest have to be measured again before their order is certain. Pure."""

import math
from collections.abc import Sequence

from autotune.search.recommend import Ranked
from autotune.search.repeats import SD_95, error
from autotune.search.sampler.improvement import expected_gain

MOST_CONTENDERS = 3
MOST_READINGS = 4
"""Probes of one candidate; beyond them it is a tie."""
CERTAIN = 2.0
"""Standard errors between two means that make their order certain (about 95%)."""


def contenders(ranked: Sequence[Ranked], sd: float) -> list[Ranked]:
    """The fastest and those that may be as fast; empty where the order is certain.

    Args:
        ranked: the fastest first.
        sd: relative standard deviation of one probe of a candidate against another.
    """
    if not ranked:
        return []
    first = ranked[0]
    others = [
        one
        for one in ranked[1:MOST_CONTENDERS]
        if behind(first, one) < CERTAIN * apart(first, one, sd)
    ]
    if not others or first.readings >= MOST_READINGS:
        return []
    return [first, *(one for one in others if one.readings < MOST_READINGS)]


def behind(first: Ranked, other: Ranked) -> float:
    """By how much `other` is slower (logarithm; about: relative)."""
    return math.log(first.tokens_per_s / other.tokens_per_s)


def apart(first: Ranked, other: Ranked, sd: float) -> float:
    """Standard error of that difference."""
    return math.hypot(_error(first, sd), _error(other, sd))


def _error(one: Ranked, sd: float) -> float:
    """Of a mean of several probes it is known already; of a single one it is more than its own."""
    if one.readings > 1:
        return (one.measurement.relative_uncertainty or 0.0) / SD_95
    return error(one.measurement, sd)


def gain_of_a_round(group: Sequence[Ranked], sd: float) -> float:
    """Relative speed that is lost if the order stays as it is: what a round can win at most.

    The expected improvement of the likeliest rival over the first, by what is known now.
    """
    first = group[0]
    rivals = (expected_gain(-behind(first, one), apart(first, one, sd)) for one in group[1:])
    return max(rivals, default=0.0)
