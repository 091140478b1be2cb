"""What a soak tells of memory and speed, without a launch."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.process.limits import LaunchReport
from autotune.run.soak import PARTS, Memory, creep_problems, decay_problems, judge_soak, soak_steps
from autotune.run.timed_steps import TimedSteps, timed_parts
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked
from autotune.space.settings import settings
from autotune.training.rehearsal import RehearsalReply
from tests.unit.builders import GIB, make_candidate, make_facts, make_job, ok

MIB = 2**20
SIXTHS = [TimedSteps(tokens=1000.0, begin_s=10 * n, end_s=10 * n + 10) for n in range(PARTS)]
CHOSEN = Ranked(number=0, candidate=make_candidate(), measurement=ok(100.0, GIB))


def launched(memory: list[tuple[float, int]], **changes: Any) -> LaunchReport:
    values: dict[str, Any] = {
        "exit_code": 0,
        "timed_out": False,
        "seconds": 70.0,
        "peak_resident_bytes": GIB,
        "peak_gpu_bytes": None,
        "lines": (),
        "host_memory": tuple(memory),
    }
    return LaunchReport(**{**values, **changes})


def held(grown_bytes: Callable[[float], float], batch_bytes: int = 300 * MIB) -> Memory:
    """Memory that a batch takes every other second, on what grows."""
    times = [n / 5 for n in range(301)]
    samples = [(t, int(GIB + grown_bytes(t)) + batch_bytes * (int(t) % 2)) for t in times]
    return Memory(what="its memory", samples=samples, limit_bytes=3 * GIB)


def test_memory_that_creeps_over_its_limit_before_the_job_ends_is_told() -> None:
    leak = held(lambda t: 4 * MIB * t)
    (problem,) = creep_problems(leak, SIXTHS, 3600.0)
    assert problem == (
        "its memory creeps by 240 MiB a minute: the limit of 3 GiB is reached after 6 min 17 s, "
        "and the job takes 60 min 0 s"
    )
    assert creep_problems(leak, SIXTHS, 300.0) == []
    (unknown,) = creep_problems(leak, SIXTHS, None)
    assert unknown.endswith("after 6 min 17 s, and the job is of unknown length")


@pytest.mark.parametrize(
    "grown_bytes",
    [
        lambda t: 0.0,
        lambda t: -5 * MIB * t,
        lambda t: 0.5 * MIB * t,
        lambda t: GIB * (t > 35),
        lambda t: GIB * (1 - math.exp(-t / 15)),
    ],
    ids=["stays", "shrinks", "hardly grows", "a step up that stays", "fills up"],
)
def test_what_does_not_grow_on_and_on_is_no_creep(grown_bytes: Callable[[float], float]) -> None:
    assert creep_problems(held(grown_bytes), SIXTHS, None) == []
    assert creep_problems(Memory(what="", samples=(), limit_bytes=0), SIXTHS, None) == []


def test_speed_that_decays_is_told_against_the_promise() -> None:
    late = replace(SIXTHS[-1], end_s=65.0)
    (problem,) = decay_problems([*SIXTHS[:-1], late], CHOSEN)
    said = "its speed decays: 100% of what was promised in the beginning, 67% after 65.0 s"
    assert problem == said
    assert decay_problems([*SIXTHS[:-1], replace(late, tokens=1300.0)], CHOSEN) == []
    assert decay_problems(SIXTHS, CHOSEN) == []


def verdict(report: LaunchReport, parts: list[TimedSteps]) -> Verification:
    kept = Verification(verified=True, reason="kept")
    return judge_soak(
        kept, report, parts, CHOSEN, settings(make_job(), make_facts(), make_candidate())
    )


@pytest.mark.usefixtures("quiet_counts")
def test_a_soak_says_what_it_has_seen() -> None:
    waits = tuple((float(n), 0.0) for n in range(62))
    quiet = verdict(launched([(1.0, GIB)], processor_waits=waits), SIXTHS)
    said = "kept; soaked for 60.0 s: no memory creeps, no speed decays"
    assert (quiet.verified, quiet.reason, quiet.soaked_s) == (True, said, 60.0)
    late = [*SIXTHS[:-1], replace(SIXTHS[-1], end_s=65.0)]
    slower = verdict(launched([], processor_waits=waits), late)
    assert not slower.verified and slower.reason.startswith("its speed decays: ")
    unknown = verdict(launched([]), late)
    assert unknown.verified
    assert unknown.reason.endswith("of speed nothing is known, as others took the cores")


def test_a_soak_that_fails_or_says_nothing_is_no_verification() -> None:
    for report, parts, said in (
        (launched([], exit_code=7), [], "in the soak: the launch ended with exit code 7"),
        (launched([], timed_out=True), SIXTHS, "in the soak: the launch did not end within 70 s"),
        (launched([]), [], "in the soak: the launch did not save"),
    ):
        found = verdict(report, parts)
        assert (found.verified, found.reason, found.soaked_s) == (False, said, None)


def test_a_soak_is_rather_too_long_than_too_short() -> None:
    assert [soak_steps(600, 0.1), soak_steps(30, 20), soak_steps(60, 2.9)] == [7200, 24, 26]


def test_the_timed_steps_are_divided_with_their_batches() -> None:
    lines = tuple((float(step), f"{{'loss': '2.{step}'}}") for step in range(2, 20, 2))
    report = replace(launched([]), lines=lines)
    history = [{"step": n, "loss": 2.0, "num_tokens": 10.0 * n} for n in range(2, 20, 2)]
    rehearsal = RehearsalReply(untimed=2, timed=16, sizes=list(range(32)))
    parts = timed_parts(report, {"log_history": history}, rehearsal, 4)
    assert [(part.begin_s, part.end_s) for part in parts] == [(2, 6), (6, 10), (10, 14), (14, 18)]
    assert [part.sizes for part in parts] == [tuple(range(n, n + 8)) for n in range(0, 32, 8)]
    assert [part.tokens for part in parts] == [40.0] * 4
    uneven = timed_parts(report, {"log_history": history}, replace(rehearsal, timed=10), 4)
    assert [part.end_s - part.begin_s for part in uneven] == [2, 2, 2, 4]
    assert timed_parts(report, None, rehearsal, 4) == []
    assert timed_parts(report, {"log_history": history}, replace(rehearsal, timed=4), 4) == []
