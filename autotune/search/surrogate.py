"""What is believed of the speed of candidates: estimates, corrected by what was measured. Pure.

The logarithm of (measured / expected speed) is a Gaussian process over candidates (Rasmussen and
Williams 2006, algorithm 2.1) with the covariance

    SHARED^2                                  all estimates are off alike
    + TERM^2 * shares . shares'               those of like work more so
    + KNOB^2 * sum over knobs of like(a, b)   a knob's value has an error of its own
    + OWN^2 * product over knobs of like      and so have its combinations

where `like` is 1 for equal values, `UNLIKE` for different ones, and for numbers falls with their
distance in doublings. The scales are fixed: a handful of probes cannot tell them, and fitted ones
rank worse. How far off they are on recorded spaces: `benchmarks/search/`.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.search.expected import Expected, Params, Reading, names_of

SHARED, TERM, KNOB, OWN = 1.0, 0.3, 0.06, 0.06
"""Standard deviations, in logarithms (about: relative)."""
UNKNOWN = 0.5
"""The same, in place of `OWN`, of a candidate whose speed nobody estimated."""
UNLIKE = 0.3
DOUBLINGS = 1.5
"""Numbers this many doublings apart are alike by exp(-1/2)."""

Array = NDArray[np.float64]


class Surrogate:
    """Beliefs over a fixed list of candidates.

    Args:
        params: of each candidate.
        expected: of each candidate.
    """

    def __init__(self, params: Sequence[Params], expected: Sequence[Expected]) -> None:
        self._params, self._expected = list(params), list(expected)
        self._known = [math.log(one.speed) for one in expected if one.speed]

    def _prior(self, expected: Sequence[Expected], readings: Sequence[Reading]) -> Array:
        """Logarithms of the expected speeds; where there is none, of a middling one."""
        logs = self._known or [one.log_speed for one in readings] or [0.0]
        middling = sum(logs) / len(logs)
        return np.array([math.log(one.speed) if one.speed else middling for one in expected])

    def posterior(self, readings: Sequence[Reading]) -> tuple[Array, Array]:
        """(mean, standard deviation) of the logarithm of each candidate's speed."""
        params = [*self._params, *(one.params for one in readings)]
        expected = [*self._expected, *(one.expected for one in readings)]
        features = _Features(params, expected)
        count = len(self._params)
        of_all, of_read = np.arange(count), np.arange(count, len(params))
        prior, variance = self._prior(expected, readings), features.variance(of_all)
        if not readings:
            return prior, np.sqrt(variance)
        across = features.covariance(of_all, of_read)
        within = features.covariance(of_read, of_read)
        noise = np.array([max(one.sd, 1e-4) ** 2 for one in readings])
        root = np.linalg.cholesky(within + np.diag(noise))
        off = np.array([one.log_speed for one in readings]) - prior[count:]
        weights = np.linalg.solve(root.T, np.linalg.solve(root, off))
        explained = np.linalg.solve(root, across.T)
        left = np.maximum(variance - (explained**2).sum(axis=0), 1e-10)
        return prior[:count] + across @ weights, np.sqrt(left)


class _Features:
    """Candidates as numbers, and the covariance of their errors."""

    def __init__(self, params: Sequence[Params], expected: Sequence[Expected]) -> None:
        self._columns = [_column([one.get(name) for one in params]) for name in names_of(params)]
        width = max((len(one.shares) for one in expected), default=0)
        self._shares = np.zeros((len(params), width))
        for row, one in enumerate(expected):
            self._shares[row, : len(one.shares)] = one.shares
        self._own = np.array([OWN if one.speed else UNKNOWN for one in expected])

    def covariance(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Array:
        shape = (len(left), len(right))
        knobs, product = np.zeros(shape), np.ones(shape)
        for column in self._columns:
            like = column.like(left, right)
            knobs += like
            product *= like
        own = np.outer(self._own[left], self._own[right]) * product
        terms = TERM**2 * self._shares[left] @ self._shares[right].T
        return np.asarray(SHARED**2 + terms + KNOB**2 * knobs + own)

    def variance(self, which: NDArray[np.int64]) -> Array:
        """The diagonal of the covariance: a candidate is like itself in every knob."""
        terms = TERM**2 * (self._shares[which] ** 2).sum(axis=1)
        knobs = KNOB**2 * len(self._columns)
        return np.asarray(SHARED**2 + terms + knobs + self._own[which] ** 2)


class _Column:
    """One knob of all candidates: numbers above 0 in doublings, anything else by its name."""

    def __init__(self, values: Array, ordered: bool) -> None:
        self._values, self._ordered = values, ordered

    def like(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Array:
        apart = self._values[left][:, None] - self._values[right][None, :]
        if self._ordered:
            return np.asarray(np.exp(-0.5 * (apart / DOUBLINGS) ** 2))
        return np.where(apart == 0, 1.0, UNLIKE)


def _column(values: Sequence[object]) -> _Column:
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) == len(values) and all(one > 0 for one in numbers):
        return _Column(np.log2(np.array(numbers, dtype=float)), ordered=True)
    names = sorted({repr(one) for one in values})
    return _Column(np.array([float(names.index(repr(one))) for one in values]), ordered=False)
