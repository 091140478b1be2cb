"""What a launch says of the promise that was made: the verdict of a verification. Pure."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plain_data import to_plain
from autotune.probe.outcome import busy_text, is_quiet
from autotune.probe.protocol import Measurement
from autotune.process.limits import LaunchReport
from autotune.process.memory_errors import read_memory_error
from autotune.process.processor_load import is_crowded, wait_share
from autotune.search.recommend import Ranked
from autotune.space.trl_config import Settings, threads
from autotune.training.rehearsal import LOGGING_STEPS, RehearsalReply
from autotune.units import format_bytes

SPEED_TOLERANCE = 0.25
"""The launch may be slower or faster than promised by this share; shared machines are this noisy.
What is much faster than its probe was not probed on the machine that it is launched on."""
MOST_TOLERANCE = 0.5
"""However noisy a start and its probe were, it may be off by so much of its speed, and no more."""
MEMORY_TOLERANCE = 0.15
"""The launch may take more than promised by this share."""
MEMORY_SLACK = 128 * 2**20
"""Bytes, or by so much: what libraries map differs between a forked process and a fresh one."""
LOGGED = ("{'loss'", "{'eps'")
"""How the lines begin in which trainers log steps; the second is PPOTrainer's."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a launch beside what was promised."""

    verified: bool
    reason: str
    tokens_per_s: float | None = None
    """Of the rehearsed steps, whatever rows they held."""
    promised_tokens_per_s: float | None = None
    """Of the whole data."""
    speed_against_promise: float | None = None
    """Seconds promised for exactly the rehearsed batches, over the seconds they took."""
    peak_memory_bytes: int | None = None
    promised_peak_memory_bytes: int | None = None
    evaluated: bool = False
    saved: bool = False
    exit_code: int | None = None
    seconds: float | None = None
    log: str | None = None
    only_too_slow: bool = False
    """Nothing but its speed speaks against it."""
    only_too_fast: bool = False
    """The same, where it was faster than what its probe says."""
    processor_wait_share: float | None = None
    """Part of the timed steps in which its threads waited for a core; None: not known."""
    soaked_s: float | None = None
    """How long it was trained to see whether memory creeps or speed decays; None: it was not."""
    accepted_noise: float | None = None
    """Share of the time in which others took the cores while speeds were measured, which the user
    accepted: the launch is judged by all else, and `verified` is false. None: they were quiet."""
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage that came to its end (`run/bundle_launch.py`), of all launches."""

    @property
    def holds(self) -> bool:
        """True if it was verified, or only noise that was accepted forbids to call it so."""
        return self.verified or self.accepted_noise is not None

    def among_noise(self, noise: float | None) -> Self:
        """Return what it shows of a ranking whose noise was accepted; None: it was quiet."""
        only_speed = self.verified or self.only_too_slow or self.only_too_fast
        if noise is None or not only_speed:
            return self
        reason = f"{busy_text(noise)} while speeds were measured; its launch: {self.reason}"
        return replace(self, verified=False, accepted_noise=noise, reason=reason)

    @property
    def was_disturbed(self) -> bool:
        """True if it was too slow while others took the cores: that says nothing of the bundle."""
        return self.only_too_slow and not is_quiet(self.processor_wait_share)

    def plain(self) -> dict[str, Any]:
        """Return the verification as JSON data."""
        return cast(dict[str, Any], to_plain(self))


# -- the timed steps, read off a launch's log lines


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
        """The seconds that they took."""
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


# -- the verdict


def judge(
    report: LaunchReport,
    state: Any | None,
    timed: TimedSteps | None,
    chosen: Ranked,
    launched: Settings,
    log: str,
) -> Verification:
    """Return the verdict of a launch on the promise. Pure.

    Args:
        state: the Trainer's own state, from the checkpoint; None: nothing was saved.
        timed: None: the launch logged too little of them.
    """
    job, facts = launched.job, launched.facts
    peak = report.peak_gpu_bytes if facts.device.kind == "cuda" else report.peak_resident_bytes
    history = state["log_history"] if state else []
    evaluated = any("eval_loss" in entry for entry in history)
    evaluates = METHODS[job.method].evaluates
    speed = timed.tokens / timed.seconds if timed is not None else None
    ratio = None if timed is None else timed.against_promise(chosen)
    waited = None if timed is None else share_waited(report, timed, launched)
    without_vllm = bool(launched.config.get("use_vllm")) and not vllm_runs(launched)
    promised = _launched_peak(chosen) if without_vllm else chosen.peak_memory_bytes
    problems = launch_problems(report, evaluated or not evaluates, state is not None, speed)
    hard = [
        *(f"on {report.node}: {one}" if report.node else one for one in problems),
        *_memory_problems(peak, promised, memory_limit_of(job, facts), chosen, without_vllm),
    ]
    slow = ratio is not None and ratio < 1 - SPEED_TOLERANCE
    fast = ratio is not None and ratio > 1 + SPEED_TOLERANCE and not vllm_runs(launched)
    speeds = f"{100 * (ratio or 0):.0f}% of the promised speed on the same batches"
    problems = [*hard, *_speed_problems(speeds, slow, fast, waited)]
    return Verification(
        verified=not problems,
        reason="; ".join(problems) or _kept(evaluates, speeds, peak, promised, without_vllm),
        tokens_per_s=speed,
        promised_tokens_per_s=chosen.tokens_per_s,
        speed_against_promise=ratio,
        peak_memory_bytes=peak,
        promised_peak_memory_bytes=promised,
        evaluated=evaluated,
        saved=state is not None,
        exit_code=report.exit_code,
        seconds=round(report.seconds, 3),
        log=log,
        only_too_slow=slow and not hard,
        only_too_fast=fast and not hard,
        processor_wait_share=waited,
    )


def judge_measurement(measured: Measurement, chosen: Ranked, log: Path) -> Verification:
    """Return what the first steps of a start, measured as a probe's are, say of the promise."""
    promised = chosen.measurement
    ratio = None
    if measured.step_time_s and promised.step_time_s:
        ratio = promised.step_time_s / measured.step_time_s
    peak, promised_peak = measured.peak_memory_bytes, promised.peak_memory_bytes or 0
    hard = [] if measured.outcome == "ok" else [f"{measured.outcome}: {measured.reason}"]
    if peak is not None and peak > max_peak(promised_peak):
        hard.append(f"it took {format_bytes(peak)}, {format_bytes(promised_peak)} were promised")
    noise = math.hypot(measured.relative_uncertainty or 0.0, promised.relative_uncertainty or 0.0)
    tolerance = min(max(SPEED_TOLERANCE, noise), MOST_TOLERANCE)
    slow = ratio is not None and ratio < 1 - tolerance
    fast = ratio is not None and ratio > 1 + tolerance
    speed = f"{100 * (ratio or 0.0):.0f}% of the promised speed"
    problems = [*hard, *([f"it had {speed}"] if slow or fast else [])]
    kept = f"it started and trained; {speed}, peak {format_bytes(peak or 0)}"
    return Verification(
        verified=not problems,
        reason="; ".join(problems) or kept,
        tokens_per_s=measured.tokens_per_s,
        promised_tokens_per_s=promised.tokens_per_s,
        speed_against_promise=ratio,
        peak_memory_bytes=peak,
        promised_peak_memory_bytes=promised.peak_memory_bytes,
        seconds=measured.seconds,
        log=str(log),
        only_too_slow=slow and not hard,
        only_too_fast=fast and not hard,
        processor_wait_share=measured.processor_wait_share,
    )


def max_peak(promised: int) -> float:
    """Return the bytes that a launch may take so that the promise holds."""
    return promised + max(promised * MEMORY_TOLERANCE, MEMORY_SLACK)


def vllm_runs(launched: Settings) -> bool:
    """True if a launch generates with vLLM: where that is installed, and no server has to be
    there."""
    facts = launched.facts
    here = "vllm" not in facts.stack.absent
    return launched.vllm is not None and here and facts.device.kind == "cuda"


def _launched_peak(chosen: Ranked) -> int:
    """Return the bytes of a launch in which transformers generates in vLLM's place."""
    m = chosen.measurement
    outside = (m.peak_memory_bytes or 0) - (m.vllm_bytes or 0) - (m.reserved_peak_bytes or 0)
    generation = m.generation_peak_bytes or 0
    if m.reserved_peak_bytes is not None:  # the phases' peaks are the allocator's alone
        generation += outside
    return max(chosen.peak_memory_bytes - (m.vllm_bytes or 0), generation)


def _kept(evaluates: bool, speeds: str, peak: int | None, promised: int, without_vllm: bool) -> str:
    """Return the words for a launch that keeps its promise."""
    instead = "; vLLM was not run, transformers generated" if without_vllm else ""
    through = "its worst batch, an evaluation" if evaluates else "its worst batch"
    return (
        f"launched through {through} and a save: {speeds}, peak {format_bytes(peak or 0)} "
        f"(promised {format_bytes(promised)}){instead}"
    )


def _speed_problems(speeds: str, slow: bool, fast: bool, waited: float | None) -> list[str]:
    if slow and waited is not None and not is_quiet(waited):
        return [f"not stable: {busy_text(waited)}, and it ran at only {speeds}"]
    if slow:
        return [f"only {speeds}"]
    if fast:
        return [f"{speeds}: its probe was measured on a slower machine than this one is now"]
    return []


def share_waited(report: LaunchReport, timed: TimedSteps, launched: Settings) -> float | None:
    """Return the part of timed steps in which the threads that compute waited for a core; None: not
    known."""
    ranks = launched.processes // launched.job.devices.nodes
    each = threads(launched.facts, ranks)
    workers = launched.config.get("dataloader_num_workers") or 0
    if is_crowded(each, ranks, workers, launched.facts.device.cores):
        return None
    return wait_share(report.processor_waits, timed.begin_s, timed.end_s, ranks * each)


def launch_problems(
    report: LaunchReport, evaluated: bool, saved: bool, speed: float | None
) -> list[str]:
    """Return why a launch did not come to its end, or cannot be timed."""
    if report.memory_kills and (report.exit_code != 0 or report.timed_out):
        size = format_bytes(report.peak_resident_bytes)
        return [
            "the kernel killed a process of the launch for memory: that of the host, or of the "
            f"control group, ran out (the largest of them held {size})"
        ]
    if report.timed_out:
        return [f"the launch did not end within {report.seconds:.0f} s"]
    if report.exit_code != 0 and (found := read_memory_error([line for _, line in report.lines])):
        line, phase = found
        return [f"the launch ran out of memory{f' in its {phase}' if phase else ''}: {line[:300]}"]
    if report.exit_code != 0:
        return [f"the launch ended with exit code {report.exit_code}"]
    if not (evaluated and saved):
        return [f"the launch did not {'evaluate' if saved else 'save'}"]
    if speed is None:
        return ["the launch logged too few steps to be timed"]
    return []


def _memory_problems(
    peak: int | None, promised: int, limit: int, chosen: Ranked, without_vllm: bool
) -> list[str]:
    # What generates in vLLM's place is no part of the job; where it did not fit, nothing is known.
    if without_vllm and (chosen.measurement.generation_parts or 1) > 1:
        return []
    if peak is not None and not without_vllm and peak > limit:
        return [f"it took {format_bytes(peak)}, over the limit of {format_bytes(limit)}"]
    if peak is not None and peak > max_peak(promised):
        return [f"it took {format_bytes(peak)}, but {format_bytes(promised)} was promised"]
    return []


def memory_limit_of(job: Job, facts: Facts) -> int:
    """Return the bytes of its device that a launch may take."""
    return job.devices.memory or facts.device.free_bytes
