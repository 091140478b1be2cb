"""How well estimates rank what was measured."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def rank_correlation(estimated: Sequence[float], measured: Sequence[float]) -> float:
    """Return Spearman's correlation; equal values share their rank; 0 where all are equal."""
    ranks = np.array([_ranks(estimated), _ranks(measured)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    size = math.sqrt(np.prod((ranks**2).sum(axis=1)))
    return float(ranks[0] @ ranks[1]) / size if size else 0.0


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the place of each value among them, the mean of their places for equal ones."""
    _, group, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    places: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[group]
    return places


def top_k_regret(estimated_s: Sequence[float], measured_s: Sequence[float], k: int) -> float:
    """Return how much slower than the fastest is the best of the `k` that were estimated fastest.

    Times of equal work, in seconds; 0.1 is 10% slower. Of equal estimates the earlier comes first.
    """
    if k < 1 or not measured_s:
        raise ValueError(f"`k >= 1` of at least one candidate must hold, but got k={k}")
    order = sorted(range(len(estimated_s)), key=estimated_s.__getitem__)
    return min(measured_s[index] for index in order[:k]) / min(measured_s) - 1
