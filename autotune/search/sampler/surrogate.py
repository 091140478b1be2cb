"""Beliefs about candidates: estimates, corrected by measurements. Pure.

The logarithm of (measured / expected) is a Gaussian process over candidates (Rasmussen and Williams
2006, algorithm 2.1) with the covariance

    shared^2                                  all estimates are off alike
    + sum over shares of (term * share)(term * share)'   those of like make-up more so
    + knob^2 * sum over knobs of like(a, b)   a knob's value has an error of its own
    + own * own' * product over knobs of like  and so have its combinations

where `like` is 1 for equal values, `UNLIKE` for different ones, and for numbers falls with their
distance in doublings. The scales are fixed: a handful of probes cannot tell them, and fitted ones
rank worse. How far off they are on recorded spaces: `benchmarks/search/`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.sampler.expected import Params, names_of

UNLIKE = 0.3
DOUBLINGS = 1.5
"""Numbers this many doublings apart are alike by exp(-1/2)."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Standard deviations of an estimate's error, in logarithms (about: relative)."""

    shared: float
    terms: tuple[float, ...]
    """Scale of each share; further shares have that of the last."""
    knob: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One candidate, or a reading of an earlier study.

    Attributes:
        value: expected; None: not known.
        shares: what the value is made of, adding up to 1.
        own_sigma: standard deviation of what is like no other candidate's error.
    """

    params: Params
    value: float | None
    shares: tuple[float, ...]
    own_sigma: float


class Surrogate:
    """Beliefs over a fixed list of candidates.

    Args:
        points: the candidates, then the readings of earlier studies.
        count: how many of them are candidates.
        earlier: (logarithm of the measured value, standard deviation of that) of the others.
    """

    def __init__(
        self,
        points: Sequence[Point],
        scales: Scales,
        count: int | None = None,
        earlier: Sequence[tuple[float, float]] = (),
    ) -> None:
        self._count = len(points) if count is None else count
        self._earlier = [(self._count + n, log, sd) for n, (log, sd) in enumerate(earlier)]
        self._values = [point.value for point in points]
        self._features = _Features(points, scales)
        self._rows: dict[int, Array] = {}

    def _row(self, index: int) -> Array:
        """Return the covariance of a point with every point; readings do not change it."""
        if index not in self._rows:
            self._rows[index] = self._features.covariance(index)
        return self._rows[index]

    def likeness_to(self, index: int) -> Array:
        """Return how similar each candidate is to the one at `index` in all its knobs: 1 where the
        same."""
        return self._features.likeness(index)[1][: self._count]

    def _prior(self, logs: Sequence[float]) -> Array:
        """Return the logarithms of the expected values; the mean of the known ones where there is
        none."""
        known_logs = [math.log(value) for value in self._values if value] or list(logs) or [0.0]
        middling = sum(known_logs) / len(known_logs)
        return np.array([math.log(value) if value else middling for value in self._values])

    def posterior(self, measurements: Sequence[tuple[int, float, float]]) -> tuple[Array, Array]:
        """Return (mean, standard deviation) of the logarithm of each candidate's value.

        Args:
            measurements: (candidate, logarithm of the measured value, standard deviation of that).
        """
        readings = [*self._earlier, *measurements]
        variance = self._features.variance[: self._count]
        prior = self._prior([log for _, log, _ in readings])
        if not readings:
            return prior[: self._count], np.sqrt(variance)
        indices = [index for index, _, _ in readings]
        rows = np.stack([self._row(index) for index in indices])
        noise = np.diag([max(sd, 1e-4) ** 2 for _, _, sd in readings])
        root = np.linalg.cholesky(rows[:, indices] + noise)
        deviations = np.array([log for _, log, _ in readings]) - prior[indices]
        weights = np.linalg.solve(root.T, np.linalg.solve(root, deviations))
        covariances = rows[:, : self._count]
        explained = np.linalg.solve(root, covariances)
        remainder = np.maximum(variance - (explained**2).sum(axis=0), 1e-10)
        return prior[: self._count] + weights @ covariances, np.sqrt(remainder)


class _Features:
    """Candidates as numbers, and the covariance of their errors."""

    def __init__(self, points: Sequence[Point], scales: Scales) -> None:
        self._scales = scales
        params = [point.params for point in points]
        self._columns = [_column([row.get(name) for row in params]) for name in names_of(params)]
        width = max((len(point.shares) for point in points), default=0)
        self._shares = np.zeros((len(points), width))
        for row, point in enumerate(points):
            self._shares[row, : len(point.shares)] = point.shares
        last = scales.terms[-1] if scales.terms else 0.0
        self._shares *= np.array([*scales.terms, *[last] * width][:width])
        self._own_sigma = np.array([point.own_sigma for point in points])
        knobs = scales.knob**2 * len(self._columns)
        shares = (self._shares**2).sum(axis=1)
        self.variance = scales.shared**2 + shares + knobs + self._own_sigma**2

    def likeness(self, index: int) -> tuple[Array, Array]:
        """Return how similar every point is to the one at `index`: (sum over the knobs,
        product)."""
        knobs, product = np.zeros(len(self._own_sigma)), np.ones(len(self._own_sigma))
        for values, ordered in self._columns:
            distance = values - values[index]
            likeness = np.where(distance == 0, 1.0, UNLIKE)
            if ordered:
                likeness = np.exp(-0.5 * (distance / DOUBLINGS) ** 2)
            knobs += likeness
            product *= likeness
        return knobs, product

    def covariance(self, index: int) -> Array:
        """Return the covariance of the point at `index` with every point: one number for each."""
        knobs, product = self.likeness(index)
        shares = self._shares @ self._shares[index]
        own_part = self._own_sigma * self._own_sigma[index] * product
        return np.asarray(self._scales.shared**2 + shares + self._scales.knob**2 * knobs + own_part)


def _column(values: Sequence[object]) -> tuple[Array, bool]:
    """Return the values of a knob in all points: numbers above 0 in doublings, others by name."""
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) == len(values) and all(number > 0 for number in numbers):
        return np.log2(np.array(numbers, dtype=float)), True
    names = sorted({repr(value) for value in values})
    return np.array([float(names.index(repr(value))) for value in values]), False
