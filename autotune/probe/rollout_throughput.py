"""The speed of an online trainer, from timed cycles: completions and tokens per second. Pure.

A cycle is `training/rollout_plan.py`'s; all that are timed do the same work, so that their spread
is the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from autotune.probe.throughput import optimistic, relative_uncertainty

PHASES = ("generation", "scoring", "update")


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
    """What a candidate achieves; seconds are of one optimizer step. Fields of `Measurement`."""

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
