"""Tokens per second, from timed micro-steps, and how well they are known. Pure.

The measured micro-batches are a few, spread over the data's lengths. Their times are scaled to the
whole sample with the least model that fits them, `seconds = a + b * padded tokens` (a, b >= 0),
calibrated to the measured total: time = model(sample) * measured / model(measured).
Known error: attention grows faster than linearly with length, which the calibration averages over.

An online trainer is timed in cycles (`training/rollout_plan.py`), which all do the same work, so
that their spread is the noise.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Two-sided 95% quantiles of Student's t at 1 to 10 degrees of freedom; beyond, 2."""
LEAST_DOUBT = 0.03
"""However close its repeats, one probe is not known better than this against another one."""
PHASES = ("generation", "scoring", "update")
"""The phases of a cycle of an online trainer."""


@dataclass(frozen=True, kw_only=True)
class MicroStep:
    """One timed forward and backward pass. `position` says which of the planned micro-batches."""

    position: int
    tokens: int
    padded_tokens: int
    seconds: float


@dataclass(frozen=True)
class Preparation:
    """The work before a training: seconds for each real token of the data, and how often the
    training goes over the data afterwards."""

    seconds_per_token: float
    passes: float


NO_PREPARATION = Preparation(0.0, 1.0)


def passes(config: Mapping[str, Any], global_batch: int, rows: int) -> float:
    """Return how often a job of this flat configuration goes over its data.

    Args:
        global_batch: rows of an optimizer step over all devices.
        rows: of the data.
    """
    steps = int(config.get("max_steps") or 0)
    return steps * global_batch / rows if steps > 0 else float(config["num_train_epochs"])


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The speed of a candidate. Seconds; `relative_uncertainty` None: one reading only."""

    tokens_per_s: float
    step_time_s: float
    micro_step_time_s: float
    optimizer_step_time_s: float
    data_wait_s: float
    tokens_per_step: float
    padding_share: float
    relative_uncertainty: float | None
    micro_step_fixed_s: float
    """Part of a micro-step that does not depend on its size."""
    micro_step_per_token_s: float
    """Seconds per token of a micro-batch, padding included."""

    @property
    def optimistic_tokens_per_s(self) -> float:
        """The upper end of the interval, at least 3% up; twice the estimate without one."""
        return optimistic(self.tokens_per_s, self.relative_uncertainty)


def optimistic(tokens_per_s: float, uncertainty: float | None) -> float:
    """Return the upper end of an interval, at least 3% up; twice the estimate without one."""
    if uncertainty is None:
        return 2 * tokens_per_s
    return tokens_per_s * (1 + max(uncertainty, LEAST_DOUBT))


def throughput(
    steps: Sequence[MicroStep],
    optimizer_s: Sequence[float],
    wait_s: Sequence[float],
    sample: Sequence[tuple[int, int]],
    accumulation: int,
    preparation: Preparation = NO_PREPARATION,
    processes: int = 1,
) -> Throughput:
    """Return the throughput at `accumulation` micro-steps per optimizer step.

    Args:
        steps: the timed micro-steps, each planned position at least once.
        optimizer_s: the timed optimizer steps.
        wait_s: waits for a micro-batch.
        sample: (tokens, padded tokens) of every micro-batch of the sample.
        accumulation: micro-steps per optimizer step of the real job.
        preparation: it lowers the tokens per second, not the step time.
        processes: that train side by side; tokens are counted over all of them.
    """
    readings: dict[int, list[float]] = defaultdict(list)
    padded: dict[int, int] = {}
    for step in steps:
        readings[step.position].append(step.seconds)
        padded[step.position] = step.padded_tokens
    centre = {position: median(seconds) for position, seconds in readings.items()}
    a, b = _fit([(padded[position], seconds) for position, seconds in centre.items()])
    modelled = sum(a + b * padded[position] for position in centre)
    scale = sum(centre.values()) / modelled
    micro = scale * mean(a + b * size for _, size in sample)
    optimizer, wait = median(optimizer_s), median(wait_s)
    step_time = accumulation * (micro + wait) + optimizer
    tokens_per_step = processes * accumulation * mean(tokens for tokens, _ in sample)
    beforehand = tokens_per_step * preparation.seconds_per_token / preparation.passes
    return Throughput(
        tokens_per_s=tokens_per_step / (step_time + beforehand),
        step_time_s=step_time,
        micro_step_time_s=micro,
        optimizer_step_time_s=optimizer,
        data_wait_s=wait,
        tokens_per_step=tokens_per_step,
        padding_share=1 - sum(t for t, _ in sample) / sum(size for _, size in sample),
        relative_uncertainty=relative_uncertainty(readings),
        micro_step_fixed_s=scale * a,
        micro_step_per_token_s=scale * b,
    )


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (fixed seconds, seconds per token): least squares with neither term negative."""
    x_mean, y_mean = mean(x for x, _ in points), mean(y for _, y in points)
    variation = sum((x - x_mean) ** 2 for x, _ in points)
    if variation == 0:
        return 0.0, y_mean / x_mean
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / variation
    if slope <= 0:
        return y_mean, 0.0
    intercept = y_mean - slope * x_mean
    if intercept >= 0:
        return intercept, slope
    return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)


def relative_uncertainty(readings: Mapping[int, Sequence[float]]) -> float | None:
    """Return the half-width of a 95% interval around the summed time, from repeats of
    micro-batches.

    The repeats of one position scatter around their mean with one relative standard deviation,
    pooled over positions; the half-width is Student's t times the standard error of the sum.
    """
    deviations = [
        (second / mean(seconds) - 1) ** 2 for seconds in readings.values() for second in seconds
    ]
    freedom = sum(len(seconds) - 1 for seconds in readings.values())
    if freedom < 1:
        return None
    sigma = math.sqrt(sum(deviations) / freedom)
    total = sum(mean(seconds) for seconds in readings.values())
    error = sum((mean(seconds) / total) ** 2 / len(seconds) for seconds in readings.values())
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 2.0
    return quantile * sigma * math.sqrt(error)


@dataclass(frozen=True, kw_only=True)
class CycleTime:
    """Seconds of a cycle: of all of it, of each phase, and of its optimizer steps."""

    seconds: float
    generation_s: float
    scoring_s: float
    update_s: float
    optimizer_s: float


@dataclass(frozen=True, kw_only=True)
class RolloutSpeed:
    """The speed of an online candidate; seconds of one optimizer step. Fields of `Measurement`."""

    tokens_per_s: float
    completions_per_s: float
    step_time_s: float
    generation_s: float
    scoring_s: float
    update_s: float
    optimizer_step_time_s: float
    tokens_per_step: float
    relative_uncertainty: float | None

    @property
    def optimistic_tokens_per_s(self) -> float:
        """The upper end of the interval, at least 3% up; twice the estimate without one."""
        return optimistic(self.tokens_per_s, self.relative_uncertainty)


def rollout_speed(
    cycles: Sequence[CycleTime], *, steps: int, tokens: int, completions: int
) -> RolloutSpeed:
    """Return the speed of a candidate.

    Args:
        cycles: at least one.
        steps: optimizer steps of a cycle.
        tokens: of the prompts and completions of a cycle.
        completions: of a cycle.
    """
    seconds = mean(cycle.seconds for cycle in cycles)
    return RolloutSpeed(
        tokens_per_s=tokens / seconds,
        completions_per_s=completions / seconds,
        step_time_s=seconds / steps,
        generation_s=mean(cycle.generation_s for cycle in cycles) / steps,
        scoring_s=mean(cycle.scoring_s for cycle in cycles) / steps,
        update_s=mean(cycle.update_s for cycle in cycles) / steps,
        optimizer_step_time_s=mean(cycle.optimizer_s for cycle in cycles) / steps,
        tokens_per_step=tokens / steps,
        relative_uncertainty=relative_uncertainty({0: [cycle.seconds for cycle in cycles]}),
    )
