"""The timed steps of a launch, read off its log lines: all, or a part of them. Pure."""

from dataclasses import dataclass
from typing import Any

from autotune.process.limits import LaunchReport
from autotune.run.launch_stages import LOGGED
from autotune.search.recommend import Ranked
from autotune.training.rehearsal import LOGGING_STEPS, RehearsalReply


@dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """Timed steps of a launch: their tokens, and when they began and ended, in seconds after its
    start.

    Attributes:
        sizes: tokens with padding of their micro-batches; None: not known.
    """

    tokens: float
    begin_s: float
    end_s: float
    sizes: tuple[int, ...] | None = None

    @property
    def seconds(self) -> float:
        """What they took."""
        return self.end_s - self.begin_s

    def against_promise(self, chosen: Ranked) -> float:
        """Return seconds that were promised for exactly these batches, over the seconds they
        took."""
        m = chosen.measurement
        if self.sizes is None or m.micro_step_fixed_s is None or m.micro_step_per_token_s is None:
            return self.tokens / chosen.tokens_per_s / self.seconds
        micro = len(self.sizes) * (m.micro_step_fixed_s + (m.data_wait_s or 0.0))
        steps = len(self.sizes) / chosen.candidate.gradient_accumulation_steps
        promised = micro + m.micro_step_per_token_s * sum(self.sizes)
        return (promised + steps * (m.optimizer_step_time_s or 0.0)) / self.seconds


def timed_steps_of(
    report: LaunchReport, state: Any | None, rehearsal: RehearsalReply
) -> TimedSteps | None:
    """Return all timed steps; None where a log line of theirs is missing.

    Args:
        state: the Trainer's own state, from the checkpoint; None: nothing was saved.
    """
    parts = timed_parts(report, state, rehearsal, 1)
    return parts[0] if parts else None


def timed_parts(
    report: LaunchReport, state: Any | None, rehearsal: RehearsalReply, count: int
) -> list[TimedSteps]:
    """Return the timed steps in so many parts of about as many steps each; none where a log line
    that they need is missing, or there are fewer steps than that."""
    if state is None:
        return []
    history = [e for e in state["log_history"] if "loss" in e or "objective/kl" in e]
    tokens_by_step = {e["step"]: e.get("num_tokens") for e in history}
    times = [when for when, line in report.lines if line.lstrip().startswith(LOGGED)]
    logged = dict(zip(sorted(tokens_by_step), times, strict=False))
    first, timed = rehearsal.untimed, rehearsal.timed
    logs = timed // LOGGING_STEPS
    ends = [first + LOGGING_STEPS * (part * logs // count) for part in range(count)]
    ends.append(rehearsal.steps)
    if any(end not in logged for end in ends):
        return []
    parts = []
    for begin, end in zip(ends, ends[1:], strict=False):
        if rehearsal.tokens is None:
            tokens = float(tokens_by_step[end] - tokens_by_step[begin])
        else:
            tokens = rehearsal.tokens * (end - begin) / timed
        sizes = None
        if rehearsal.sizes is not None:
            each = len(rehearsal.sizes) // timed
            sizes = tuple(rehearsal.sizes[(begin - first) * each : (end - first) * each])
        parts.append(
            TimedSteps(tokens=tokens, begin_s=logged[begin], end_s=logged[end], sizes=sizes)
        )
    return parts if all(part.seconds > 0 for part in parts) else []
