"""The speeds of a noisy grid: an analysis of variance of all its readings.

A single reading is off by several percent, and the best of many single readings is too good to be
true. So the truth is what a linear model makes of all readings together: the logarithm of the speed
by knobs, pairs and triples of knobs, and the drift of the machine (linear between knots, one every
`PROBES_A_KNOT` probes), by least squares with a small ridge. It knows nothing of estimates.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDER, RIDGE, PROBES_A_KNOT = 3, 0.3, 20


@dataclass(frozen=True)
class Smoothed:
    """Logarithms of speed.

    Attributes:
        truths: by the row of knob values.
        residual: standard deviation of a reading around the fit, drift taken out.
        error: mean standard error of a truth.
        left_out: root mean square error of a reading by the fit of all the others.
    """

    truths: dict[tuple[str, ...], float]
    residual: float
    error: float
    left_out: float


def smoothed(rows: Sequence[tuple[str, ...]], logs: Sequence[float]) -> Smoothed:
    """The truth of every combination that was read.

    Args:
        rows: the knob values of each reading, in the order in which they were made.
        logs: what was read.
    """
    levels = [sorted(set(column))[1:] for column in zip(*rows, strict=True)]
    effects = np.array([_effects(row, levels) for row in rows])
    drift = _drift(len(rows))
    design = np.hstack([effects, drift])
    y = np.array(logs)
    ridge = np.eye(design.shape[1]) * RIDGE
    ridge[0, 0] = 0.0
    inverse = np.linalg.pinv(design.T @ design + ridge)
    weights = inverse @ design.T @ y
    hat = np.einsum("ij,jk,ik->i", design, inverse, design)
    off = y - design @ weights
    residual = math.sqrt(float((off**2).sum()) / (len(y) - float(hat.sum())))
    alone = np.hstack([effects, np.tile(drift.mean(axis=0), (len(rows), 1))])
    truths = dict(zip(rows, (alone @ weights).tolist(), strict=True))
    return Smoothed(
        truths=truths,
        residual=residual,
        error=residual * math.sqrt(float(hat.mean())),
        left_out=math.sqrt(float(((off / (1 - np.minimum(hat, 0.99))) ** 2).mean())),
    )


def _effects(row: tuple[str, ...], levels: Sequence[Sequence[str]]) -> list[float]:
    """1, then whether each value, each pair and each triple of values is there."""
    there = [[float(value == one) for one in some] for value, some in zip(row, levels, strict=True)]
    found = [1.0]
    for order in range(1, ORDER + 1):
        for chosen in itertools.combinations(there, order):
            found += [math.prod(values) for values in itertools.product(*chosen)]
    return found


def _drift(count: int) -> np.ndarray:
    knots = max(count // PROBES_A_KNOT, 2)
    at = np.linspace(0, count - 1, knots)
    hats = [np.interp(np.arange(count), at, np.eye(knots)[n]) for n in range(knots)]
    return np.stack(hats[1:], axis=1)
