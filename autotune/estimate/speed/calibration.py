"""Estimated times held against measured ones: correct them, and say how well they rank. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.estimate.speed.linear import dot, inverse, solve
from autotune.estimate.speed.step_time import TERMS, TimeParts

SHARED_SD = 1.0
"""Standard deviation, before any measurement, of the logarithm by which all terms are off alike."""
TERM_SD = 0.3
"""The same of one term against the others."""
RESIDUAL_SD = 0.07
"""Relative error of one estimate that no factor on a term takes away; the first guess, worth
`RESIDUAL_WORTH` measurements. A prototype's 144 candidates had 4 to 7% in the median."""
RESIDUAL_WORTH = 4.0
_SD_95 = 1.96
_STEPS, _REFITS, _LONGEST = 40, 4, 0.5


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """What estimates have to be multiplied by, and how well that is known.

    Attributes:
        logs: the logarithm of each term's factor, as `TERMS` orders them.
        covariance: of these.
        residual: relative standard deviation of a measured time around its corrected estimate.
        measurements: how many there were.
    """

    logs: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    residual: float
    measurements: int

    @property
    def factors(self) -> dict[str, float]:
        """The factor of each term."""
        return {term: math.exp(log) for term, log in zip(TERMS, self.logs, strict=True)}

    def time_s(self, parts: TimeParts) -> float:
        """The corrected time."""
        return sum(_terms(parts, self.logs))

    def relative_uncertainty(self, parts: TimeParts) -> float:
        """Half-width of a 95% interval around the corrected time, relative."""
        shares = _shares(_terms(parts, self.logs))
        variance = sum(a * dot(row, shares) for a, row in zip(shares, self.covariance, strict=True))
        return _SD_95 * math.sqrt(variance + self.residual**2)


def calibrated(estimates: Sequence[TimeParts], measured_s: Sequence[float]) -> Coefficients:
    """The factors that make the estimates most like what was measured.

    Maximum a posteriori: `measured = sum of exp(log factor) * part`, with a relative error that is
    fitted too; the log factors have one part in common (`SHARED_SD`) and one of their own
    (`TERM_SD`). So a single measurement moves all terms alike, and only many that disagree in kind
    tell the terms apart. A free fit ranked worse after three random probes than no calibration
    (prototype: Spearman 0.95 to 0.87 at the 10th percentile).
    """
    if len(estimates) != len(measured_s):
        raise ValueError(f"{len(estimates)} estimates, but {len(measured_s)} measured times")
    residual = RESIDUAL_SD
    logs, covariance = _fit(estimates, measured_s, residual)
    for _ in range(_REFITS):
        squares = sum(
            math.log(seconds / sum(_terms(parts, logs))) ** 2
            for parts, seconds in zip(estimates, measured_s, strict=True)
        )
        weight = RESIDUAL_WORTH + len(measured_s)
        residual = math.sqrt((RESIDUAL_WORTH * RESIDUAL_SD**2 + squares) / weight)
        logs, covariance = _fit(estimates, measured_s, residual)
    return Coefficients(
        logs=tuple(logs),
        covariance=tuple(tuple(row) for row in covariance),
        residual=residual,
        measurements=len(measured_s),
    )


def _fit(
    estimates: Sequence[TimeParts], measured_s: Sequence[float], residual: float
) -> tuple[list[float], list[list[float]]]:
    """The log factors at this relative error, and their covariance; Gauss-Newton."""
    prior = _prior()
    logs = [0.0] * len(TERMS)
    for _ in range(_STEPS):
        curvature = [list(row) for row in prior]
        slope = [-dot(row, logs) for row in prior]
        for parts, seconds in zip(estimates, measured_s, strict=True):
            terms = _terms(parts, logs)
            shares, off = _shares(terms), math.log(seconds / sum(terms))
            for i, share in enumerate(shares):
                slope[i] += share * off / residual**2
                for j, other_share in enumerate(shares):
                    curvature[i][j] += share * other_share / residual**2
        step = solve(curvature, slope)
        assert step is not None  # the prior alone is positive definite
        step = [max(-_LONGEST, min(_LONGEST, change)) for change in step]
        logs = [log + change for log, change in zip(logs, step, strict=True)]
        if max(map(abs, step)) < 1e-9:
            break
    return logs, inverse(curvature)


def _prior() -> list[list[float]]:
    """The inverse of `TERM_SD^2 I + SHARED_SD^2 1 1'` (Sherman and Morrison)."""
    size = len(TERMS)
    common = SHARED_SD**2 / (TERM_SD**2 + size * SHARED_SD**2)
    return [[(float(i == j) - common) / TERM_SD**2 for j in range(size)] for i in range(size)]


def _terms(parts: TimeParts, logs: Sequence[float]) -> list[float]:
    exposed = parts.exposed()
    return [math.exp(log) * getattr(exposed, term) for term, log in zip(TERMS, logs, strict=True)]


def _shares(terms: Sequence[float]) -> list[float]:
    total = sum(terms)
    return [term / total for term in terms]


# -- how well estimates rank


def rank_correlation(estimated: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's: that of the ranks, equal values sharing theirs; 0 where all are equal."""
    estimated_ranks, measured_ranks = _ranks(estimated), _ranks(measured)
    middle = (len(estimated_ranks) - 1) / 2
    estimated_ranks, measured_ranks = (
        [rank - middle for rank in estimated_ranks],
        [rank - middle for rank in measured_ranks],
    )
    size = math.sqrt(dot(estimated_ranks, estimated_ranks) * dot(measured_ranks, measured_ranks))
    return dot(estimated_ranks, measured_ranks) / size if size else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + end - 1) / 2
        start = end
    return ranks


def top_k_regret(estimated_s: Sequence[float], measured_s: Sequence[float], k: int) -> float:
    """How much slower than the fastest is the best of the `k` that were estimated fastest.

    Times of equal work, in seconds; 0.1 is 10% slower. Of equal estimates the earlier comes first.
    """
    if k < 1 or not measured_s:
        raise ValueError(f"`k >= 1` of at least one candidate must hold, but got k={k}")
    order = sorted(range(len(estimated_s)), key=estimated_s.__getitem__)
    return min(measured_s[index] for index in order[:k]) / min(measured_s) - 1
