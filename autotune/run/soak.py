"""What a launch shows only with time: memory that creeps, speed that decays. Pure.

`autotune verify --soak` launches a bundle that holds once more, for minutes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.facts.host import host_limit
from autotune.probe.outcome import is_quiet
from autotune.process.limits import LaunchReport, Samples
from autotune.run.timed_steps import TimedSteps
from autotune.run.verdict import Verification, launch_problems, memory_limit_of, share_waited
from autotune.search.job_time import work_of
from autotune.search.recommend import Ranked
from autotune.space.settings import Settings
from autotune.training.rehearsal import LOGGING_STEPS
from autotune.units import format_bytes, format_seconds

LEAST_S, MOST_S = 30.0, 86400.0
"""How long a soak may be."""
PARTS = 6
"""Into which the steps of a soak are divided."""
WARM_PARTS = 2
"""What the first show of memory does not count: caches fill then."""
CREEP_BYTES = 8 * 2**20
"""What is held least in a part has to be so much above that of the part before. Chosen, not
measured: no healthy launch was soaked for minutes yet."""
LASTING = 0.5
"""The last such growth is at least this share of the first one: what fills up grows ever less."""
DECAY = 0.2
"""By this share the last part is slower than the first, against the promise for its tokens."""
_UNKNOWN_S = 86400.0
"""A job of which nobody knows how long it takes is taken to take a day."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a launch held of one kind of memory (`what`), and what it may hold."""

    what: str
    samples: Samples
    limit_bytes: int


def soak_steps(soak_s: float, step_s: float) -> int:
    """How many steps a soak has: rather too long than too short, and enough for its parts."""
    steps = max(round(1.2 * soak_s / step_s), 2 * PARTS * LOGGING_STEPS)
    return steps + steps % LOGGING_STEPS


def creep_problems(memory: Memory, parts: Sequence[TimedSteps], job_s: float | None) -> list[str]:
    """That memory grows on and on, and would pass its limit before the job ends.

    What is held least in each part is compared: batches differ, and a leak stays.

    Args:
        job_s: how long the job takes; None: not known.
    """
    least = [
        min((held for when, held in memory.samples if p.begin_s <= when <= p.end_s), default=None)
        for p in parts[WARM_PARTS:]
    ]
    held = [size for size in least if size is not None]
    growth = [after - before for before, after in itertools.pairwise(held)]
    if len(growth) < PARTS - WARM_PARTS - 1 or min(growth) < CREEP_BYTES:
        return []
    if growth[-1] < LASTING * growth[0]:
        return []
    middles = [(part.begin_s + part.end_s) / 2 for part in (parts[WARM_PARTS], parts[-1])]
    rate = sum(growth) / (middles[1] - middles[0])
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


def decay_problems(parts: Sequence[TimedSteps], chosen: Ranked) -> list[str]:
    """That a launch gets slower."""
    first, last = (part.against_promise(chosen) for part in (parts[0], parts[-1]))
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
    """What a soak says of a bundle that was verified before.

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
    slower = decay_problems(parts, chosen)
    quiet = _was_quiet(report, (parts[0], parts[-1]), launched)
    problems += slower if quiet else []
    took_s = parts[-1].end_s - parts[0].begin_s
    speed = "of speed nothing is known, as others took the cores"
    speed = speed if slower and not quiet else "no speed decays"
    remark = f"soaked for {format_seconds(took_s)}: no memory creeps, {speed}"
    return replace(
        verified,
        verified=not problems,
        reason="; ".join(problems) or f"{verified.reason}; {remark}",
        soaked_s=round(took_s, 3),
    )


def memories(report: LaunchReport, launched: Settings) -> list[Memory]:
    """What is looked at: the device's, and of a GPU its host's, of which each rank has a share."""
    job, facts = launched.job, launched.facts
    limit = memory_limit_of(job, facts)
    if facts.device.kind != "cuda":
        return [Memory(what="its memory", samples=report.host_memory, limit_bytes=limit)]
    found = [Memory(what="its GPU's memory", samples=report.gpu_memory, limit_bytes=limit)]
    host_bytes = host_limit(job, facts.device.kind, facts.host)
    if host_bytes is not None:
        each = host_bytes // launched.processes
        what = "its host's memory"
        found.append(Memory(what=what, samples=report.host_memory, limit_bytes=each))
    return found


def _was_quiet(report: LaunchReport, parts: Sequence[TimedSteps], launched: Settings) -> bool:
    """Whether nobody else can have slowed these down: on a CPU it has to be known."""
    shares = [share_waited(report, part, launched) for part in parts]
    on_gpu = launched.facts.device.kind == "cuda"
    return all(is_quiet(share) if share is not None else on_gpu for share in shares)
