"""What a soak tells of memory and speed, without a launch."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.process.limits import LaunchReport
from autotune.process.run_folder import RunFolder
from autotune.run.bundle_launch import BundleLaunch, Stages
from autotune.run.deadline import Deadline
from autotune.run.soak import PARTS, Memory, creep_problems, decay_problems, judge_soak, soak_steps
from autotune.run.verdict import TimedSteps, Verification, timed_parts
from autotune.run.verify import _soak
from autotune.search.recommend import Ranked
from autotune.space.trl_config import settings
from autotune.training.rehearsal import RehearsalReply
from tests.unit.builders import GIB, make_candidate, make_facts, make_job, ok

MIB = 2**20
MINUTE = [TimedSteps(tokens=500.0, begin_s=5 * n, end_s=5 * n + 5) for n in range(PARTS)]
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
    (problem,) = creep_problems(leak, MINUTE, 3600.0)
    assert problem == (
        "its memory creeps by 240 MiB a minute: the limit of 3 GiB is reached after 6 min 17 s, "
        "and the job takes 60 min 0 s"
    )
    assert creep_problems(leak, MINUTE, 300.0) == []
    (unknown,) = creep_problems(leak, MINUTE, None)
    assert unknown.endswith("after 6 min 17 s, and the job is of unknown length")


@pytest.mark.parametrize(
    "grown_bytes",
    [
        lambda t: 0.0,
        lambda t: -5 * MIB * t,
        lambda t: 0.5 * MIB * t,
        lambda t: GIB * (t > 35),
        lambda t: GIB * (t > 42),
        lambda t: GIB * (t > 55),
        lambda t: GIB * (1 - math.exp(-t / 15)),
    ],
    ids=["stays", "shrinks", "hardly grows", "a step up", "later", "late", "fills up"],
)
def test_what_does_not_grow_on_and_on_is_no_creep(grown_bytes: Callable[[float], float]) -> None:
    assert creep_problems(held(grown_bytes), MINUTE, None) == []
    assert creep_problems(Memory(what="", samples=(), limit_bytes=0), MINUTE, None) == []


def at(*seconds: float) -> list[TimedSteps]:
    """Parts that take so long each."""
    ends = list(itertools.accumulate(seconds))
    begins = [0.0, *ends[:-1]]
    return [TimedSteps(tokens=500.0, begin_s=b, end_s=e) for b, e in zip(begins, ends, strict=True)]


@pytest.mark.parametrize("leak", ["by the second", "by the step"])
@pytest.mark.parametrize("parts", [at(*[5] * 6, *[15] * 6), at(*[15] * 6, *[5] * 6)])
def test_a_leak_is_found_though_others_take_the_cores_for_a_while(
    leak: str, parts: list[TimedSteps]
) -> None:
    """As in a nightly run: the load ended in the middle of the soak."""
    grown = [
        sum(min(max((t / 5 - p.begin_s) / p.seconds, 0), 1) for p in parts) for t in range(600)
    ]
    growing = grown if leak == "by the step" else [t / 50 for t in range(600)]
    samples = [
        (t / 5, int(GIB + 20 * MIB * g) + 300 * MIB * (t % 4)) for t, g in enumerate(growing)
    ]
    memory = Memory(what="its memory", samples=samples, limit_bytes=3 * GIB)
    (problem,) = creep_problems(memory, parts, None)
    assert problem.startswith("its memory creeps by ")


def test_speed_that_decays_is_told_against_the_promise() -> None:
    all_quiet = [True] * PARTS
    decayed = at(*[5] * 8, *[7.5] * 4)
    said = "its speed decays: 100% of what was promised in the beginning, 67% after 70.0 s"
    assert decay_problems(decayed, all_quiet, CHOSEN) == [said]
    assert decay_problems(MINUTE, all_quiet, CHOSEN) == []
    once_slow = at(*[5] * 11, 50)
    assert decay_problems(once_slow, all_quiet, CHOSEN) == []
    # Of parts in which others took the cores nothing is known.
    assert decay_problems(decayed, [*all_quiet[:-2], False, False], CHOSEN) == [said]
    assert decay_problems(decayed, [*all_quiet[:-3], False, False, False], CHOSEN) is None


def verdict(report: LaunchReport, parts: list[TimedSteps]) -> Verification:
    kept = Verification(verified=True, reason="kept")
    return judge_soak(
        kept, report, parts, CHOSEN, settings(make_job(), make_facts(), make_candidate())
    )


@pytest.mark.usefixtures("quiet_counts")
def test_a_soak_says_what_it_has_seen() -> None:
    waits = tuple((float(n), 0.0) for n in range(62))
    quiet = verdict(launched([(1.0, GIB)], processor_waits=waits), MINUTE)
    said = "kept; soaked for 60.0 s: no memory creeps, no speed decays"
    assert (quiet.verified, quiet.reason, quiet.soaked_s) == (True, said, 60.0)
    late = at(*[5] * 8, *[7.5] * 4)
    waits = tuple((float(n), 0.0) for n in range(72))
    slower = verdict(launched([], processor_waits=waits), late)
    assert not slower.verified and slower.reason.startswith("its speed decays: ")
    unknown = verdict(launched([]), late)
    assert unknown.verified
    assert unknown.reason.endswith("of speed nothing is known, as others took the cores")


def test_a_soak_that_fails_or_says_nothing_is_no_verification() -> None:
    for report, parts, said in (
        (launched([], exit_code=7), [], "in the soak: the launch ended with exit code 7"),
        (launched([], timed_out=True), MINUTE, "in the soak: the launch did not end within 70 s"),
        (launched([]), [], "in the soak: the launch did not save"),
    ):
        found = verdict(report, parts)
        assert (found.verified, found.reason, found.soaked_s) == (False, said, None)


class Launches(BundleLaunch):
    """Stands for launches that take a tenth of a second a step."""

    def undisturbed(self, ranked: Ranked) -> tuple[LaunchReport, Any]:
        done.append(self.rehearsal.timed)
        steps = range(2, self.rehearsal.steps + 2, 2)
        lines = tuple((step / 10, "{'loss': '2.0'}") for step in steps)
        history = [{"step": step, "loss": 2.0, "num_tokens": 10.0 * step} for step in steps]
        return replace(launched([]), lines=lines), {"log_history": history}


done: list[int] = []


def test_a_soak_that_is_over_much_too_early_is_launched_again(tmp_path: Path) -> None:
    """It is planned by steps, and the machine was busy when those were timed."""
    launch = Launches(
        run=RunFolder(path=tmp_path),
        launched=settings(make_job(), make_facts(), make_candidate()),
        rehearsal=RehearsalReply(untimed=2, timed=4, sizes=None),
        deadline=Deadline(),
        stages=Stages(lambda *_: None),
    )
    verified = Verification(verified=True, reason="kept", speed_against_promise=1.0)
    for step_s, steps in ((0.1, [360]), (0.15, [240]), (2.0, [24, 360])):
        done.clear()
        slow = replace(CHOSEN, measurement=replace(CHOSEN.measurement, step_time_s=step_s))
        soaked = _soak(launch, slow, lambda *_: None, verified, 30.0)
        assert done == steps and soaked.soaked_s == pytest.approx(steps[-1] / 10)


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
