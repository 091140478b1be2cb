"""What a study's trials say of all candidates: how fast, whether they fit, whether they run. Pure.

Trials are read as any Optuna study has them: the value, the intermediate values, the constraint
`memory` (bytes beyond what is allowed; of a pruned trial a lower bound).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.estimate.memory import Residual, refined
from autotune.search.expected import Expected, Params, Reading
from autotune.search.surrogate import Array, Surrogate

NOISE = 0.03
"""Standard deviation of one probe against another of the same candidate, relative."""
STOPPED_NOISE = 0.1
"""The same of a probe that was stopped early: it saw less."""
UNKNOWN_FITS = 0.5
"""Probability to fit where nobody estimated the memory."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one finished trial says of candidate `index`. What it does not say is None.

    Attributes:
        log_speed: of the objective.
        peak_bytes: measured; `at_least`: it ran out of memory there.
        stopped: its speed was read early.
        failed: it does not run at all.
    """

    index: int
    log_speed: float | None = None
    peak_bytes: float | None = None
    at_least: bool = False
    stopped: bool = False
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """Of every candidate.

    Attributes:
        mean, sd: of the logarithm of its speed.
        fits, runs: probabilities.
        best: belief about the fastest one that was measured and fits; None before there is one.
    """

    mean: Array
    sd: Array
    fits: Array
    runs: Array
    best: float | None

    def improvement(self) -> Array:
        """Expected gain in the logarithm of the speed over the best, by running and fitting.

        Before anything fits: the expected speed itself, relative to the fastest expected.
        """
        if self.best is None:
            return np.asarray(np.exp(self.mean - self.mean.max()) * self.fits * self.runs)
        ahead = self.mean - self.best
        z = ahead / self.sd
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        gain = ahead * _normal(z) + self.sd * density
        return np.asarray(np.maximum(gain, 0.0) * self.fits * self.runs)


def _normal(z: Array) -> Array:
    return np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in z])


@dataclass(frozen=True, kw_only=True)
class Believer:
    """Turns what was told into beliefs.

    Args:
        residual: what is assumed of memory estimates beforehand.
        allowed_bytes: memory a candidate may take; None: any.
        history: readings of earlier studies.
    """

    params: Sequence[Params]
    expected: Sequence[Expected]
    residual: Residual = field(default_factory=Residual)
    allowed_bytes: float | None = None
    history: Sequence[Reading] = ()

    def beliefs(self, told: Sequence[Told]) -> Beliefs:
        """What to believe now."""
        readings = [
            Reading(
                params=self.params[one.index],
                expected=self.expected[one.index],
                log_speed=one.log_speed,
                sd=STOPPED_NOISE if one.stopped else NOISE,
            )
            for one in told
            if one.log_speed is not None
        ]
        surrogate = Surrogate(self.params, self.expected)
        mean, sd = surrogate.posterior([*self.history, *readings])
        stable = {one.index for one in told if self._is_stable(one)}
        return Beliefs(
            mean=mean,
            sd=sd,
            fits=self._fits(told),
            runs=self._runs(told),
            best=max((float(mean[index]) for index in stable), default=None),
        )

    def _is_stable(self, told: Told) -> bool:
        if told.log_speed is None or told.stopped or told.failed:
            return False
        if self.allowed_bytes is None or told.peak_bytes is None:
            return True
        return told.peak_bytes <= self.allowed_bytes

    def learned(self, told: Sequence[Told]) -> Residual:
        """How far off memory estimates are. An out-of-memory says "at least": it counts where that
        is more than was expected."""
        estimated, measured = [], []
        for one in told:
            peak = self.expected[one.index].peak_bytes
            if peak is None or one.peak_bytes is None:
                continue
            if one.at_least and self.residual.corrected(peak) >= one.peak_bytes:
                continue
            estimated.append(float(peak))
            measured.append(float(one.peak_bytes))
        return refined(self.residual, estimated, measured)

    def _fits(self, told: Sequence[Told]) -> Array:
        if self.allowed_bytes is None:
            return np.ones(len(self.params))
        residual = self.learned(told)
        return np.array([self._one_fits(one, residual) for one in self.expected])

    def _one_fits(self, expected: Expected, residual: Residual) -> float:
        assert self.allowed_bytes is not None
        if expected.peak_bytes is None:
            return UNKNOWN_FITS
        relative = max(residual.relative_sigma, expected.relative_sigma)
        residual = dataclasses.replace(residual, relative_sigma=relative)
        return 1.0 - residual.probability_above(expected.peak_bytes, self.allowed_bytes)

    def _runs(self, told: Sequence[Told]) -> Array:
        """A candidate runs as often as the knob value of its that failed most: a value that was
        only ever seen to fail is doubted, one that ran with other values is not."""
        failed = [self.params[one.index] for one in told if one.failed]
        if not failed:
            return np.ones(len(self.params))
        ran = [self.params[one.index] for one in told if not one.failed]
        return np.array([_least_chance(one, ran, failed) for one in self.params])


def _least_chance(params: Params, ran: Sequence[Params], failed: Sequence[Params]) -> float:
    chances = [1.0]
    for name, value in params.items():
        good, bad = (sum(one.get(name) == value for one in some) for some in (ran, failed))
        chances.append((good + 1) / (good + bad + 1))
    return min(chances)


def best_new(
    beliefs: Beliefs, new: Sequence[int], peak_bytes: Callable[[int], float | None]
) -> int:
    """The candidate that promises most; of equals the leanest, of those the first."""
    gain = beliefs.improvement()
    return min(new, key=lambda n: (-float(gain[n]), peak_bytes(n) or math.inf, n))
