"""What a launch says of the promise that was made: the verdict of a verification. Pure."""

from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.probe.outcome import busy_text, is_quiet
from autotune.process.limits import LaunchReport
from autotune.process.out_of_memory import read_memory_error
from autotune.process.processor_waits import is_crowded, wait_share
from autotune.run.timed_steps import TimedSteps
from autotune.search.recommend import Ranked
from autotune.space.settings import Settings, threads
from autotune.units import format_bytes

SPEED_TOLERANCE = 0.25
"""The launch may be slower or faster than promised by this share; shared machines are this noisy.
What is much faster than its probe was not probed on the machine that it is launched on."""
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
    only_too_fast: bool = False
    """The same, where it was faster than what its probe says."""
    processor_wait_share: float | None = None
    """Part of the timed steps in which its threads waited for a core; None: not known."""
    soaked_s: float | None = None
    """How long it was trained to see whether memory creeps or speed decays; None: it was not."""
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage that came to its end (`run/launch_stages.py`), of all launches."""

    @property
    def was_disturbed(self) -> bool:
        """True if it was too slow while others took the cores: that says nothing of the bundle."""
        return self.only_too_slow and not is_quiet(self.processor_wait_share)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def judge(
    report: LaunchReport,
    state: Any | None,
    timed: TimedSteps | None,
    chosen: Ranked,
    launched: Settings,
    log: str,
) -> Verification:
    """Return what the launch says of the promise. Pure.

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
    hard = [
        *launch_problems(report, evaluated or not evaluates, state is not None, speed),
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


def vllm_runs(launched: Settings) -> bool:
    """True if a launch generates with vLLM: where that is installed, and no server has to be
    there."""
    facts = launched.facts
    here = "vllm" not in facts.stack.absent
    return launched.vllm is not None and here and facts.device.kind == "cuda"


def _launched_peak(chosen: Ranked) -> int:
    """Return what a launch takes in which transformers generate in vLLM's place. Bytes."""
    m = chosen.measurement
    outside = (m.peak_memory_bytes or 0) - (m.vllm_bytes or 0) - (m.reserved_peak_bytes or 0)
    generation = m.generation_peak_bytes or 0
    if m.reserved_peak_bytes is not None:  # the phases' peaks are the allocator's alone
        generation += outside
    return max(chosen.peak_memory_bytes - (m.vllm_bytes or 0), generation)


def _kept(evaluates: bool, speeds: str, peak: int | None, promised: int, without_vllm: bool) -> str:
    """Return what is said of a launch that keeps its promise."""
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
    ranks, each = launched.processes, threads(launched.facts, launched.processes)
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
    slack = max(promised * MEMORY_TOLERANCE, MEMORY_SLACK)
    if peak is not None and peak > promised + slack:
        return [f"it took {format_bytes(peak)}, but {format_bytes(promised)} was promised"]
    return []


def memory_limit_of(job: Job, facts: Facts) -> int:
    """Return what a launch may take of its device. Bytes."""
    return job.devices.memory or facts.device.free_bytes
