"""What a launch shows only with time: memory that creeps, speed that decays. Pure.

`autotune verify --soak` launches a bundle that holds once more, for minutes.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.facts.host import host_limit
from autotune.probe.outcome import is_quiet
from autotune.process.limits import LaunchReport, Samples
from autotune.run.verdict import (
    TimedSteps,
    Verification,
    launch_problems,
    memory_limit_of,
    share_waited,
)
from autotune.search.job_time import work_of
from autotune.search.recommend import Ranked
from autotune.space.trl_config import Settings
from autotune.training.rehearsal import LOGGING_STEPS
from autotune.units import format_bytes, format_seconds

LEAST_S, MOST_S = 30.0, 86400.0
"""How long a soak may be."""
PARTS = 12
"""Into which the steps of a soak are divided."""
WARM = 1 / 3
"""The share of a soak whose memory does not count: caches fill then."""
WINDOWS = 12
"""Into which the rest of its time is divided. What is held least in each is compared: batches
differ, and a leak stays."""
CREEP_BYTES = 24 * 2**20
"""Memory that creeps grows by so much in the rest of a soak. Chosen, not measured: no healthy
launch was soaked for minutes yet."""
LASTING = 0.5
"""It grows in the second half of that at least by this share of all of it, a second or a step: what
fills up grows ever less."""
DECAY = 0.2
"""By this share the last third is slower than the first, against the promise for its tokens."""
_UNKNOWN_S = 86400.0
"""A job of which nobody knows how long it takes is taken to take a day."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The use of one kind of memory (`what`) by a launch, and its limit."""

    what: str
    samples: Samples
    limit_bytes: int


def soak_steps(soak_s: float, step_s: float) -> int:
    """Return how many steps a soak has: rather too long than too short, and enough for its
    parts."""
    steps = max(round(1.2 * soak_s / step_s), PARTS * LOGGING_STEPS)
    return steps + steps % LOGGING_STEPS


def creep_problems(memory: Memory, parts: Sequence[TimedSteps], job_s: float | None) -> list[str]:
    """Return the problems of memory that grows on and on, and would pass its limit before the job
    ends.

    Whether it grows as fast to the end is looked at by the second and by the step: where others
    take the cores for a while, a leak of each step is slower by the second, and one by the second
    is faster by the step.

    Args:
        job_s: how long the job takes; None: not known.
    """
    least = _least_held(memory.samples, parts)
    if len(least) < WINDOWS // 2:
        return []
    rate = slope(least)
    if rate * (least[-1][0] - least[0][0]) < CREEP_BYTES:
        return []
    by_step = [(_parts_until(when, parts), held) for when, held in least]
    if not (_lasts(least) or _lasts(by_step)):
        return []
    room = memory.limit_bytes - max(held for _, held in memory.samples)
    full_s, lasts_s = max(room, 0) / rate, _UNKNOWN_S if job_s is None else job_s
    if full_s > lasts_s:
        return []
    takes = "is of unknown length" if job_s is None else f"takes {format_seconds(job_s)}"
    return [
        f"{memory.what} creeps by {format_bytes(round(60 * rate))} a minute: the limit of "
        f"{format_bytes(memory.limit_bytes)} is reached after {format_seconds(full_s)}, and the "
        f"job {takes}"
    ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between any two points (Theil and Sen): a few that lie
    elsewhere, or one step up that stays, do not move it."""
    pairs = itertools.combinations(points, 2)
    return statistics.median((y - y0) / (x - x0) for (x0, y0), (x, y) in pairs)


def _least_held(samples: Samples, parts: Sequence[TimedSteps]) -> list[tuple[float, float]]:
    """Return (the middle of each window of time, what is held least in it), once it is warm."""
    began, ended = parts[0].begin_s, parts[-1].end_s
    began += WARM * (ended - began)
    width, least = (ended - began) / WINDOWS, []
    for window in range(WINDOWS):
        begin_s = began + window * width
        held = [size for when, size in samples if begin_s <= when < begin_s + width]
        if held:
            least.append((begin_s + width / 2, float(min(held))))
    return least


def _parts_until(when_s: float, parts: Sequence[TimedSteps]) -> float:
    """Return how many parts were over at a time."""
    return sum(min(max((when_s - p.begin_s) / p.seconds, 0.0), 1.0) for p in parts)


def _lasts(points: Sequence[tuple[float, float]]) -> bool:
    """True if what grows does so to the end."""
    return slope(points[len(points) // 2 :]) >= LASTING * slope(points)


def decay_problems(
    parts: Sequence[TimedSteps], quiet: Sequence[bool], chosen: Ranked
) -> list[str] | None:
    """Return the problem of a launch that gets slower; None: others took the cores, so nothing is
    known.

    Args:
        quiet: of each part, whether others left it the cores; the rest does not count.
    """
    speeds = [
        part.against_promise(chosen) if q else None for part, q in zip(parts, quiet, strict=True)
    ]
    third = len(parts) // 3
    ends = [[s for s in end if s is not None] for end in (speeds[:third], speeds[-third:])]
    if min(map(len, ends)) < third / 2:
        return None
    first, last = map(statistics.median, ends)
    if last > (1 - DECAY) * first:
        return []
    took_s = parts[-1].end_s - parts[0].begin_s
    return [
        f"its speed decays: {first:.0%} of what was promised in the beginning, {last:.0%} after "
        f"{format_seconds(took_s)}"
    ]


def judge_soak(
    verified: Verification,
    report: LaunchReport,
    parts: Sequence[TimedSteps],
    chosen: Ranked,
    launched: Settings,
) -> Verification:
    """Return the verdict of a soak on a verified bundle.

    Args:
        parts: its steps, in parts; none where too few of them were logged.
    """
    problems = launch_problems(report, evaluated=True, saved=bool(parts), speed=1.0)
    if problems or not parts:
        said = problems[0] if problems else "too few of its steps were logged"
        return replace(verified, verified=False, reason=f"in the soak: {said}")
    job_s = work_of(launched.config).seconds(chosen.measurement)
    for memory in memories(report, launched):
        problems += creep_problems(memory, parts, job_s)
    slower = decay_problems(parts, _quiet_parts(report, parts, launched), chosen)
    problems += slower or []
    took_s = parts[-1].end_s - parts[0].begin_s
    speed = "no speed decays"
    if slower is None:
        speed = "of speed nothing is known, as others took the cores"
    remark = f"soaked for {format_seconds(took_s)}: no memory creeps, {speed}"
    return replace(
        verified,
        verified=not problems,
        reason="; ".join(problems) or f"{verified.reason}; {remark}",
        soaked_s=round(took_s, 3),
    )


def memories(report: LaunchReport, launched: Settings) -> list[Memory]:
    """Return what is looked at: the device's, and of a GPU its host's, of which each rank has a
    share."""
    job, facts = launched.job, launched.facts
    limit = memory_limit_of(job, facts)
    if facts.device.kind != "cuda":
        return [Memory(what="its memory", samples=report.host_memory, limit_bytes=limit)]
    found = [Memory(what="its GPU's memory", samples=report.gpu_memory, limit_bytes=limit)]
    host_bytes = host_limit(job.devices.host_memory, facts.device.kind, facts.host)
    if host_bytes is not None:
        each = host_bytes // launched.processes
        what = "its host's memory"
        found.append(Memory(what=what, samples=report.host_memory, limit_bytes=each))
    return found


def _quiet_parts(
    report: LaunchReport, parts: Sequence[TimedSteps], launched: Settings
) -> list[bool]:
    """Return whether nobody else can have slowed each of these down: on a CPU it has to be
    known."""
    shares = [share_waited(report, part, launched) for part in parts]
    on_gpu = launched.facts.device.kind == "cuda"
    return [is_quiet(share) if share is not None else on_gpu for share in shares]
