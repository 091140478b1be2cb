"""What a launch says of the promise that was made: the verdict of a verification. Pure."""

from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.process.limits import LaunchReport
from autotune.run.launch_stages import LOGGED
from autotune.search.recommend import Ranked
from autotune.space.settings import Settings
from autotune.training.rehearsal import RehearsalReply
from autotune.units import format_bytes

SPEED_TOLERANCE = 0.25
"""The launch may be slower than promised by this share; shared machines are this noisy."""
MEMORY_TOLERANCE = 0.15
"""The launch may take more than promised by this share."""
MEMORY_SLACK = 128 * 2**20
"""Bytes, or by so much: what libraries map differs between a forked process and a fresh one."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the launch showed beside what was promised."""

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
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage that came to its end (`run/launch_stages.py`), of all launches."""

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def judge(
    report: LaunchReport,
    state: Any | None,
    rehearsed: tuple[float, float] | None,
    sizes: list[int] | None,
    chosen: Ranked,
    launched: Settings,
    log: str,
) -> Verification:
    """What the launch says of the promise. Pure.

    Args:
        state: the Trainer's own state, from the checkpoint; None: nothing was saved.
        rehearsed: (tokens, seconds) of the timed steps.
        sizes: tokens with padding of the timed micro-batches; None: not known.
    """
    job, facts = launched.job, launched.facts
    peak = report.peak_gpu_bytes if facts.device.kind == "cuda" else report.peak_resident_bytes
    history = state["log_history"] if state else []
    evaluated = any("eval_loss" in entry for entry in history)
    evaluates = METHODS[job.method].evaluates
    speed = rehearsed[0] / rehearsed[1] if rehearsed is not None else None
    ratio = _against_promise(chosen, rehearsed, sizes)
    without_vllm = bool(launched.config.get("use_vllm")) and not vllm_runs(launched)
    promised = _launched_peak(chosen) if without_vllm else chosen.peak_memory_bytes
    hard = [
        *_launch_problems(report, evaluated or not evaluates, state is not None, speed),
        *_memory_problems(peak, promised, _limit(job, facts), chosen, without_vllm),
    ]
    slow = ratio is not None and ratio < 1 - SPEED_TOLERANCE
    speeds = f"{100 * (ratio or 0):.0f}% of the promised speed on the same batches"
    problems = [*hard, *([f"only {speeds}"] if slow else [])]
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
    )


def vllm_runs(launched: Settings) -> bool:
    """Whether a launch generates with vLLM: where that is installed, and no server has to be
    there."""
    facts = launched.facts
    here = "vllm" not in facts.stack.absent
    return launched.vllm is not None and here and facts.device.kind == "cuda"


def _launched_peak(chosen: Ranked) -> int:
    """What a launch takes in which transformers generate in vLLM's place. Bytes."""
    m = chosen.measurement
    outside = (m.peak_memory_bytes or 0) - (m.vllm_bytes or 0) - (m.reserved_peak_bytes or 0)
    generation = m.generation_peak_bytes or 0
    if m.reserved_peak_bytes is not None:  # the phases' peaks are the allocator's alone
        generation += outside
    return max(chosen.peak_memory_bytes - (m.vllm_bytes or 0), generation)


def _kept(evaluates: bool, speeds: str, peak: int | None, promised: int, without_vllm: bool) -> str:
    """What is said of a launch that keeps its promise."""
    instead = "; vLLM was not run, transformers generated" if without_vllm else ""
    through = "its worst batch, an evaluation" if evaluates else "its worst batch"
    return (
        f"launched through {through} and a save: {speeds}, peak {format_bytes(peak or 0)} "
        f"(promised {format_bytes(promised)}){instead}"
    )


def _launch_problems(
    report: LaunchReport, evaluated: bool, saved: bool, speed: float | None
) -> list[str]:
    if report.timed_out:
        return [f"the launch did not end within {report.seconds:.0f} s"]
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
    slack = max(promised * MEMORY_TOLERANCE, MEMORY_SLACK)
    if peak is not None and peak > promised + slack:
        return [f"it took {format_bytes(peak)}, but {format_bytes(promised)} was promised"]
    return []


def _against_promise(
    chosen: Ranked, rehearsed: tuple[float, float] | None, sizes: list[int] | None
) -> float | None:
    """Promised over measured seconds of the timed steps."""
    if rehearsed is None:
        return None
    tokens, seconds = rehearsed
    m = chosen.measurement
    if sizes is None or m.micro_step_fixed_s is None or m.micro_step_per_token_s is None:
        return tokens / chosen.tokens_per_s / seconds
    micro = len(sizes) * (m.micro_step_fixed_s + (m.data_wait_s or 0.0))
    steps = len(sizes) / chosen.candidate.gradient_accumulation_steps
    promised = micro + m.micro_step_per_token_s * sum(sizes)
    return (promised + steps * (m.optimizer_step_time_s or 0.0)) / seconds


def _limit(job: Job, facts: Facts) -> int:
    return job.devices.memory or facts.device.free_bytes


def timed_part(
    report: LaunchReport, state: Any | None, rehearsal: RehearsalReply
) -> tuple[float, float] | None:
    """(tokens, seconds) of the timed steps, by their log lines; None where some are missing."""
    if state is None:
        return None
    history = [e for e in state["log_history"] if "loss" in e or "objective/kl" in e]
    tokens_by_step = {e["step"]: e.get("num_tokens") for e in history}
    times = [when for when, line in report.lines if line.lstrip().startswith(LOGGED)]
    logged = dict(zip(sorted(tokens_by_step), times, strict=False))
    first, last = rehearsal.untimed, rehearsal.steps
    if last not in logged or first not in logged:
        return None
    seconds = logged[last] - logged[first]
    tokens = rehearsal.tokens
    if tokens is None:
        tokens = tokens_by_step[last] - tokens_by_step[first]
    return (float(tokens), seconds) if seconds > 0 else None
