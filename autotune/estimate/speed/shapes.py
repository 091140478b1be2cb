"""The time of a micro-step of any shape, from a few shapes that were traced. Pure."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import mul
from typing import Self

from autotune.estimate.speed.step_time import TERMS, TimeParts

Shape = tuple[int, int]
"""Rows and their padded length; rows laid one behind the other are one row."""


@dataclass(frozen=True, kw_only=True)
class ShapeTimes:
    """Times as curves over the shape.

    Each part is `a + b * tokens` with a, b >= 0, of parts that grow with scores
    `a + b * tokens + c * tokens * length` (least squares of the relative error), times a correction
    that makes it exact at the traced shapes and is interpolated between them. A part without scores
    is a curve over the tokens: nothing is concluded from its length, which the few traced shapes
    hardly vary. Known error: rates jump where kernels change, and a chunked loss grows by whole
    chunks.

    Attributes:
        points: times at the traced shapes.
        scores: the parts that grow with tokens * length.
    """

    points: Mapping[Shape, TimeParts]
    curves: Mapping[str, tuple[float, ...]]
    scores: frozenset[str] = frozenset(TERMS)

    @classmethod
    def fit(
        cls, points: Mapping[Shape, TimeParts], scores: frozenset[str] = frozenset(TERMS)
    ) -> Self:
        """Return the curves through the times at some shapes."""
        if not points:
            raise ValueError("no shape was traced")
        curves = {}
        for term in TERMS:
            values = [
                (_basis(shape, scores=term in scores), getattr(parts, term))
                for shape, parts in points.items()
            ]
            curves[term] = nonnegative_fit(values, first=0 if term == "overhead_s" else 1)
        return cls(points=dict(points), curves=curves, scores=scores)

    def at(self, rows: int, length: int) -> TimeParts:
        """Return the time at this shape."""
        shape = (rows, length)
        if shape in self.points:
            return self.points[shape]
        parts = {term: self._part(term, shape) for term in TERMS}
        overlapped = next(iter(self.points.values())).overlapped
        return TimeParts(**parts, overlapped=overlapped)

    def _part(self, term: str, shape: Shape) -> float:
        scores = term in self.scores
        if scores:
            correction = _weighted(self._log_ratios[term], shape)
        else:
            correction = _interpolated(*self._ratios_by_tokens[term], shape)
        curve: float = sum(map(mul, self.curves[term], _basis(shape, scores=scores)))
        return curve * math.exp(correction)

    @cached_property
    def _ratios_by_tokens(self) -> dict[str, tuple[list[float], list[float]]]:
        return {term: _by_tokens(ratios) for term, ratios in self._log_ratios.items()}

    @cached_property
    def _log_ratios(self) -> dict[str, dict[Shape, float]]:
        """log(time / curve) at each traced point, by term; only where both are above 0."""
        ratios: dict[str, dict[Shape, float]] = {}
        for term, curve in self.curves.items():
            pairs = {
                point: (
                    getattr(time, term),
                    sum(map(mul, curve, _basis(point, scores=term in self.scores))),
                )
                for point, time in self.points.items()
            }
            ratios[term] = {
                point: math.log(real / fit)
                for point, (real, fit) in pairs.items()
                if fit > 0 and real > 0
            }
        return ratios


def _weighted(values: Mapping[Shape, float], shape: Shape) -> float:
    """Return the mean of values at some shapes, the nearer ones more; 0 without any."""
    weights = {point: 1 / _distance(point, shape) for point in values}
    total = sum(weights.values())
    return sum(weights[point] * values[point] for point in values) / total if total else 0.0


def _by_tokens(values: Mapping[Shape, float]) -> tuple[list[float], list[float]]:
    """Return the logarithms of the tokens of some shapes, ascending, and the mean value at each."""
    at_place: dict[float, list[float]] = {}
    for (rows, length), value in values.items():
        at_place.setdefault(math.log(rows * length), []).append(value)
    places = sorted(at_place)
    return places, [sum(at_place[place]) / len(at_place[place]) for place in places]


def _interpolated(places: Sequence[float], values: Sequence[float], shape: Shape) -> float:
    """Return what values at some places come to at as many tokens as a shape has: linear in the
    tokens' logarithm, as at the nearest beyond them; 0 without any."""
    if not places:
        return 0.0
    at = math.log(shape[0] * shape[1])
    above = bisect_left(places, at)
    if above == 0 or above == len(places):
        return values[min(above, len(places) - 1)]
    low, high = values[above - 1], values[above]
    share = (at - places[above - 1]) / (places[above] - places[above - 1])
    return low + (high - low) * share


def _basis(shape: Shape, *, scores: bool) -> tuple[float, ...]:
    rows, length = shape
    terms = 1.0, float(rows * length), float(rows * length * length)
    return terms if scores else terms[:2]


def _distance(left: Shape, right: Shape) -> float:
    """Return the squared distance of two shapes, in doublings."""
    return sum(math.log2(a / b) ** 2 for a, b in zip(left, right, strict=True))


def nonnegative_fit(
    values: Sequence[tuple[Sequence[float], float]], *, first: int = 0
) -> tuple[float, ...]:
    """Return the c >= 0 with the least relative error of `c . x` to y, over (x, y), of all subsets.

    Where several fit alike, as they do with one value, that of `first` alone is taken.
    """
    width = len(values[0][0])
    order = sorted(range(width), key=lambda n: n != first)
    import numpy as np  # a plan's first line comes before any fit

    scaled = np.array([[x / y for x in xs] for xs, y in values if y > _NOTHING])
    best, least_error = (0.0,) * width, math.inf
    if not len(scaled):
        return best
    lengths = np.abs(scaled).max(axis=0)
    for count in range(1, width + 1):
        for columns in map(list, combinations(order, count)):
            if not lengths[columns].all():
                continue
            parts, ones = scaled[:, columns] / lengths[columns], np.ones(len(scaled))
            solution, _, rank, _ = np.linalg.lstsq(parts, ones, rcond=_SINGULAR)
            if rank < count or solution.min() < 0:
                continue
            error = float(((parts @ solution - ones) ** 2).sum())
            if error < least_error - _TIE:
                full = np.zeros(width)
                full[columns] = solution / lengths[columns]
                best, least_error = tuple(full.tolist()), error
    return best


_NOTHING = 1e-200
"""Seconds; what is less is nothing, and dividing by it would be too much."""
_SINGULAR = 1e-6
"""Smallest over largest singular value, below which a curve is not determined."""
_TIE = 1e-12
"""Squared relative error by which a curve with more terms has to be better."""
