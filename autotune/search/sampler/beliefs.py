"""Beliefs about all candidates from a study's trials: how fast, whether they fit, whether they run.
Pure.

Trials are read as any Optuna study has them: the value, the intermediate values, the constraint
`memory` (bytes beyond what is allowed; of a pruned trial a lower bound).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.estimate.residual import Residual
from autotune.search.sampler.expected import Expected, Params, Reading
from autotune.search.sampler.improvement import expected_gain, normal
from autotune.search.sampler.surrogate import Array, Point, Scales, Surrogate

NOISE = 0.03
"""Relative standard deviation of one probe against another of the same candidate."""
STOPPED_NOISE = 0.06
"""Relative standard deviation of a probe that was stopped early: it measured less."""
SPEED = Scales(shared=1.0, terms=(0.3,), knob=0.08)
OWN_SPEED, UNKNOWN_SPEED = 0.06, 0.5
"""The part of a speed's error that is its own: where it was estimated, and where it was not."""
PEAK_NOISE, LEAST_NOISE = 0.01, 0.05
"""Relative standard deviation of a measured peak, and of one that is a lower bound."""
UNKNOWN_FITS, PRIOR_PROBES = 0.5, 0.3
"""Probability to fit where the memory was not estimated, and the number of probes that it counts
as."""


@dataclass(frozen=True, kw_only=True)
class TrialReading:
    """The reading of a finished trial of candidate `index`; a field that it lacks is None.

    Attributes:
        log_speed: of the objective.
        noise: standard deviation of that, where more than usual.
        peak_bytes: measured; `at_least`: it ran out of memory there.
        stopped: its speed was read early.
        failed: it does not run at all.
    """

    index: int
    log_speed: float | None = None
    noise: float = 0.0
    peak_bytes: float | None = None
    at_least: bool = False
    stopped: bool = False
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """Beliefs about every candidate.

    Attributes:
        mean, sd: of the logarithm of its speed.
        fits, runs: probabilities.
        order_of_fit: 0, but below 0 where it is as good as certain that it does not fit.
        best: belief about the fastest one that was measured and fits; None before there is one.
    """

    mean: Array
    sd: Array
    fits: Array
    order_of_fit: Array
    runs: Array
    best: float | None

    def improvement(self) -> Array:
        """Return the expected gain in the logarithm of the speed over the best, by running and
        fitting.

        Before anything fits: the expected speed itself, relative to the fastest expected.
        """
        if self.best is None:
            return np.asarray(np.exp(self.mean - self.mean.max()) * self.fits * self.runs)
        lead = self.mean - self.best
        gain = np.array([expected_gain(*belief) for belief in zip(lead, self.sd, strict=True)])
        return np.asarray(gain * self.fits * self.runs)


class Believer:
    """A model that turns readings of trials into beliefs.

    Args:
        params: of each candidate.
        expected: of each candidate.
        residual: what is assumed of memory estimates beforehand.
        allowed_bytes: memory a candidate may take; None: any.
        history: readings of earlier studies.
    """

    def __init__(
        self,
        params: Sequence[Params],
        expected: Sequence[Expected],
        residual: Residual,
        allowed_bytes: float | None,
        history: Sequence[Reading],
    ) -> None:
        self._params, self._allowed_bytes = params, allowed_bytes
        earlier = [_speed_point(reading.params, reading.expected) for reading in history]
        points = [_speed_point(*pair) for pair in zip(params, expected, strict=True)]
        self._speed = Surrogate(
            [*points, *earlier],
            SPEED,
            len(points),
            [(reading.log_speed, reading.sd) for reading in history],
        )
        pairs = zip(params, expected, strict=True)
        peaks = [_memory_point(*pair, residual) for pair in pairs]
        self._memory = Surrogate(peaks, memory_scales(residual))
        self._without_estimate = np.array([point.value is None for point in peaks])

    def beliefs(self, trials: Sequence[TrialReading]) -> Beliefs:
        """Return the beliefs about all candidates after these trials."""
        readings = [
            (t.index, t.log_speed, max(STOPPED_NOISE if t.stopped else NOISE, t.noise))
            for t in trials
            if t.log_speed is not None
        ]
        mean, sd = self._speed.posterior(readings)
        against = {trial.index for trial in trials if self._is_against(trial)}
        stable = {t.index for t in trials if t.log_speed is not None and not t.stopped}
        fits, order_of_fit = self._fits(trials)
        return Beliefs(
            mean=mean,
            sd=sd,
            fits=fits,
            order_of_fit=order_of_fit,
            runs=self._runs(trials),
            best=max((float(mean[index]) for index in stable - against), default=None),
        )

    def _is_against(self, trial: TrialReading) -> bool:
        """True if a trial rules its candidate out, whatever others show."""
        if trial.failed or trial.at_least:
            return True
        if self._allowed_bytes is None or trial.peak_bytes is None:
            return False
        return trial.peak_bytes > self._allowed_bytes

    def peaks(self, trials: Sequence[TrialReading]) -> tuple[Array, Array]:
        """Return (mean, standard deviation) of the logarithm of each candidate's peak memory.

        An out-of-memory says "at least": it counts where that is more than was expected.
        """
        pairs = [(trial, math.log(trial.peak_bytes)) for trial in trials if trial.peak_bytes]
        readings = [(trial.index, log, PEAK_NOISE) for trial, log in pairs if not trial.at_least]
        mean, sd = self._memory.posterior(readings)
        peaks_beyond = [
            (trial.index, log, LEAST_NOISE)
            for trial, log in pairs
            if trial.at_least and log > mean[trial.index]
        ]
        return self._memory.posterior([*readings, *peaks_beyond]) if peaks_beyond else (mean, sd)

    def _fits(self, trials: Sequence[TrialReading]) -> tuple[Array, Array]:
        """Return (probability to fit, a value that orders candidates where that is as good as
        0)."""
        if self._allowed_bytes is None:
            return np.ones(len(self._params)), np.zeros(len(self._params))
        mean, sd = self.peaks(trials)
        room = (math.log(max(self._allowed_bytes, 1.0)) - mean) / sd
        fits, unknown = np.array([normal(sds) for sds in room]), self._without_estimate
        if unknown.any():
            fits = np.where(unknown, self._similar_fit_rate(trials), fits)
        return fits, np.where((room < -5) & ~unknown, room, 0.0)

    def _similar_fit_rate(self, trials: Sequence[TrialReading]) -> Array:
        """Return the share of similar candidates that fit, for each candidate; the more similar,
        the more they count."""
        fitted = np.full(len(self._params), UNKNOWN_FITS * PRIOR_PROBES)
        seen = np.full(len(self._params), PRIOR_PROBES)
        for trial in trials:
            if trial.stopped or trial.peak_bytes is not None:
                likeness = self._memory.likeness_to(trial.index)
                seen += likeness
                fitted += likeness * (not self._is_against(trial))
        return np.asarray(fitted / seen)

    def _runs(self, trials: Sequence[TrialReading]) -> Array:
        """Return the probability that each candidate runs, by the knob value that failed most: a
        value that always failed is doubted, one that ran with other values is not."""
        failing_params = [self._params[trial.index] for trial in trials if trial.failed]
        if not failing_params:
            return np.ones(len(self._params))
        stable_params = [self._params[trial.index] for trial in trials if not trial.failed]
        return np.array(
            [_least_chance(params, stable_params, failing_params) for params in self._params]
        )


def _speed_point(params: Params, expected: Expected) -> Point:
    own_sigma = OWN_SPEED if expected.speed else UNKNOWN_SPEED
    return Point(params=params, value=expected.speed, shares=expected.shares, own_sigma=own_sigma)


def _memory_point(params: Params, expected: Expected, residual: Residual) -> Point:
    """Return the point of a process's peak: what tensors take, and what lies beside them; both may
    be off."""
    own_sigma = residual.relative_sigma
    if expected.peak_bytes is None:
        return Point(params=params, value=None, shares=(), own_sigma=own_sigma)
    total = max(residual.corrected(expected.peak_bytes), 1.0)
    offset_share = residual.offset_bytes / total
    own_sigma = max(own_sigma, expected.relative_sigma)
    return Point(
        params=params, value=total, shares=(1 - offset_share, offset_share), own_sigma=own_sigma
    )


def memory_scales(residual: Residual) -> Scales:
    """Return the assumed errors of memory estimates, as scales."""
    offset_sigma = residual.sigma_bytes / residual.offset_bytes if residual.offset_bytes else 0.0
    return Scales(
        shared=0.0, terms=(residual.bias_sigma, offset_sigma), knob=residual.relative_sigma / 2
    )


def _least_chance(
    params: Params, stable_params: Sequence[Params], failing_params: Sequence[Params]
) -> float:
    chances = [1.0]
    for name, value in params.items():
        good, bad = (
            sum(p.get(name) == value for p in group) for group in (stable_params, failing_params)
        )
        chances.append((good + 1) / (good + bad + 1))
    return min(chances)


def best_new(beliefs: Beliefs, new: Sequence[int]) -> int:
    """Return the most promising candidate; among equals the likeliest to fit, then the first."""
    gain = beliefs.improvement()
    return min(new, key=lambda n: (-float(gain[n]), -float(beliefs.order_of_fit[n]), n))
