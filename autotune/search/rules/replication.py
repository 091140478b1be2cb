"""The fastest candidates that have to be measured again before their order is certain. Pure."""

import math
from collections.abc import Sequence

from autotune.search.recommend import Ranked
from autotune.search.repeats import SD_95, error
from autotune.search.sampler.improvement import expected_gain

MOST_CONTENDERS = 3
MOST_READINGS = 4
"""The most probes of one candidate; beyond them it is a tie."""
CERTAIN = 2.0
"""Standard errors between two means that make their order certain (about 95%)."""


def contenders(ranked: Sequence[Ranked], sd: float) -> list[Ranked]:
    """Return the fastest and those that may be as fast; empty where the order is certain.

    Args:
        ranked: the fastest first.
        sd: relative standard deviation of one probe of a candidate against another.
    """
    if not ranked:
        return []
    first = ranked[0]
    rivals = [
        rival
        for rival in ranked[1:MOST_CONTENDERS]
        if lag(first, rival) < CERTAIN * error_of_lag(first, rival, sd)
    ]
    if not rivals or first.readings >= MOST_READINGS:
        return []
    return [first, *(rival for rival in rivals if rival.readings < MOST_READINGS)]


def lag(first: Ranked, rival: Ranked) -> float:
    """Return by how much `rival` is slower, in logarithms (about: relative)."""
    return math.log(first.tokens_per_s / rival.tokens_per_s)


def error_of_lag(first: Ranked, rival: Ranked, sd: float) -> float:
    """Return the standard error of the lag (`lag`)."""
    return math.hypot(_error(first, sd), _error(rival, sd))


def _error(ranked: Ranked, sd: float) -> float:
    """Return the relative error of a speed: known for a mean of several probes, wider for a single
    one."""
    if ranked.readings > 1:
        return (ranked.measurement.relative_uncertainty or 0.0) / SD_95
    return error(ranked.measurement, sd)


def gain_of_a_round(group: Sequence[Ranked], sd: float) -> float:
    """Return the relative speed that is lost if the order stays as it is: the most that a round can
    win.

    The expected improvement of the likeliest rival over the first, by what is known now.
    """
    first = group[0]
    rivals = (
        expected_gain(-lag(first, rival), error_of_lag(first, rival, sd)) for rival in group[1:]
    )
    return max(rivals, default=0.0)
