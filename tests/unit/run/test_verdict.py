"""What a launch says of the promise: the verdict, without a launch."""

import functools
from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import MachineError
from autotune.facts import devices
from autotune.process.limits import LaunchReport
from autotune.run import verify
from autotune.run.deadline import Deadline
from autotune.run.verdict import TimedSteps, Verification, judge, timed_steps_of
from autotune.search.recommend import Ranked
from autotune.space.trl_config import settings
from autotune.training.rehearsal import RehearsalReply
from tests.unit.builders import make_candidate, make_facts, make_job, ok

GIB = 2**30


STEPS = RehearsalReply(untimed=2, timed=4, sizes=None)


def report(**changes: Any) -> LaunchReport:
    lines = tuple((float(step), f"{{'loss': '2.{step}'}}") for step in (2, 4, 6))
    values: dict[str, Any] = {
        "exit_code": 0,
        "timed_out": False,
        "seconds": 20.0,
        "peak_resident_bytes": GIB,
        "peak_gpu_bytes": None,
        "lines": ((0.5, "Loading"), *lines),
    }
    return LaunchReport(**{**values, **changes})


def state(evaluated: bool = True) -> dict[str, Any]:
    history: list[dict[str, Any]] = [
        {"step": step, "loss": 2.0, "num_tokens": 100.0 * step} for step in (2, 4, 6)
    ]
    return {"log_history": history + ([{"step": 6, "eval_loss": 2.0}] if evaluated else [])}


def chosen(**figures: Any) -> Ranked:
    speed = figures.pop("tokens_per_s", 100.0)
    measurement = replace(ok(speed, GIB), **figures)
    return Ranked(number=0, candidate=make_candidate(), measurement=measurement)


def verdict(
    launch: LaunchReport, saved: Any, ranked: Ranked, sizes: Any = None, job: Any = None
) -> Any:
    part = timed_steps_of(launch, saved, replace(STEPS, sizes=sizes))
    launched = settings(job or make_job(), make_facts(), ranked.candidate)
    return judge(launch, saved, part, ranked, launched, "launch.log")


def test_the_timed_part_lies_between_the_log_lines_of_its_first_and_last_step() -> None:
    timed = TimedSteps(tokens=400.0, begin_s=2.0, end_s=6.0)
    assert timed_steps_of(report(), state(), STEPS) == timed


def test_tokens_that_the_launch_does_not_count_are_told() -> None:
    uncounted = {"log_history": [{"step": step, "loss": 2.0} for step in (2, 4, 6)]}
    told = replace(STEPS, tokens=77)
    part = timed_steps_of(report(), uncounted, told)
    assert (part.tokens, part.seconds) == (77.0, 4.0)


def test_a_launch_without_its_last_log_line_is_not_timed() -> None:
    short = report(lines=((2.0, "{'loss': '1'}"),))
    assert timed_steps_of(short, state(), STEPS) is None
    assert not verdict(short, state(), chosen()).verified


def test_a_launch_that_keeps_the_promise_is_verified_with_both_figures() -> None:
    found = verdict(report(), state(), chosen())
    assert found.verified and found.evaluated and found.saved
    assert found.tokens_per_s == found.promised_tokens_per_s == 100.0
    assert found.speed_against_promise == pytest.approx(1.0)


def test_the_promise_is_made_for_the_very_batches_that_were_launched() -> None:
    figures = {"micro_step_fixed_s": 0.1, "micro_step_per_token_s": 0.01}
    times = {"optimizer_step_time_s": 0.2, "data_wait_s": 0.0}
    ranked = chosen(**figures, **times)
    steps = 4 / ranked.candidate.gradient_accumulation_steps
    promised = 4 * 0.1 + 0.01 * 300 + steps * 0.2
    found = verdict(report(), state(), ranked, sizes=[50, 150, 60, 40])
    assert found.speed_against_promise == pytest.approx(promised / 4.0)


def test_a_launch_that_is_only_too_slow_says_so() -> None:
    found = verdict(report(), state(), chosen(tokens_per_s=200.0))
    assert not found.verified and found.only_too_slow
    assert "50% of the promised speed" in found.reason
    assert not found.was_disturbed


def test_a_launch_that_is_much_faster_than_its_probe_is_as_suspicious() -> None:
    found = verdict(report(), state(), chosen(tokens_per_s=32.0))
    assert not found.verified and found.only_too_fast and not found.only_too_slow
    assert found.reason.startswith("312% of the promised speed")
    assert verdict(report(), state(), chosen(tokens_per_s=81.0)).verified


def waits(share: float, threads: int) -> tuple[tuple[float, float], ...]:
    """Of a launch whose threads wait in its timed steps (2 s to 6 s) alone."""
    waited = share * threads * 4.0
    return ((0.0, 0.0), (1.9, 0.1), (4.0, 0.1 + waited / 2), (6.1, 0.1 + waited), (9.0, 99.0))


@pytest.mark.usefixtures("quiet_counts")
def test_a_slow_launch_on_a_busy_machine_says_nothing_of_the_bundle() -> None:
    threads = make_facts().device.cores
    launch = report(processor_waits=waits(0.63, threads))
    found = verdict(launch, state(), chosen(tokens_per_s=200.0))
    assert found.was_disturbed and found.processor_wait_share == pytest.approx(0.6, abs=0.01)
    assert found.reason.startswith("not stable: the machine was busy 60% of the time")
    assert verdict(launch, state(), chosen()).verified
    workers = make_job(training={"dataloader_num_workers": 1})  # they take cores themselves
    assert verdict(launch, state(), chosen(), job=workers).processor_wait_share is None
    quiet = report(processor_waits=waits(0.05, threads))
    assert not verdict(quiet, state(), chosen(tokens_per_s=200.0)).was_disturbed


@pytest.mark.usefixtures("quiet_counts")
def test_what_was_disturbed_is_launched_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "PAUSES_S", (0.0, 0.0))
    kept = Verification(verified=True, reason="")
    slow = Verification(verified=False, reason="", only_too_slow=True)
    busy = replace(slow, processor_wait_share=0.6)
    for outcomes, launches in (([kept], 1), ([slow], 1), ([busy, kept], 2), ([busy] * 4, 3)):
        left = iter(outcomes)
        last = verify._in_quiet(functools.partial(next, left), Deadline())
        assert last is outcomes[launches - 1]
        assert len(list(left)) == len(outcomes) - launches
    assert verify._in_quiet(lambda: replace(busy, seconds=9.0), Deadline(total_s=10.0))


@pytest.mark.usefixtures("quiet_counts")
def test_a_launch_that_is_off_says_so_before_it_is_probed_and_launched_again() -> None:
    slow = Verification(verified=False, reason="only 51% of the speed", only_too_slow=True)
    launches, said = iter([slow, Verification(verified=True, reason="kept")]), list[str]()
    found = verify._judge_launches(
        lambda _: next(launches),
        chosen(),
        lambda: chosen().measurement,
        Deadline(),
        lambda stage, _: said.append(stage),
    )
    assert found.verified and found.reason.startswith("kept; a new probe gives ")
    assert said == ["only 51% of the speed; so it is probed and launched once more"]


@pytest.mark.parametrize(
    ("launch", "saved", "said"),
    [
        (report(exit_code=1), None, "exit code 1"),
        (report(exit_code=1, memory_kills=1), None, "the kernel killed a process of the launch"),
        (report(timed_out=True), None, "did not end"),
        (report(), state(evaluated=False), "did not evaluate"),
        (report(), None, "did not save"),
        (report(peak_resident_bytes=2 * GIB), state(), "was promised"),
        (report(peak_resident_bytes=2**50), state(), "over the limit"),
    ],
)
def test_a_broken_promise_is_named(launch: LaunchReport, saved: Any, said: str) -> None:
    found = verdict(launch, saved, chosen())
    assert not found.verified and not found.only_too_slow
    assert said in found.reason


@pytest.mark.parametrize(("over", "kept"), [(120, True), (140, False)])
def test_libraries_of_a_small_job_break_no_promise(over: int, kept: bool) -> None:
    promised = GIB // 2
    launch = report(peak_resident_bytes=promised + over * 2**20)
    found = verdict(launch, state(), chosen(peak_memory_bytes=promised))
    assert found.verified is kept, found.reason


def test_a_launch_beside_others_on_its_gpu_says_nothing_of_the_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = devices.DeviceProcess(pid=7, used_bytes=GIB, name="game")
    device = make_facts("cuda").device
    monkeypatch.setattr(devices, "gpu", lambda _: replace(device, processes=(other,)))
    with pytest.raises(MachineError, match=r"GPU 1 is in use by pid 7 \(game\) holds 1 GiB"):
        verify._refuse_shared_gpus(device)
    monkeypatch.setattr(devices, "gpu", lambda _: device)
    verify._refuse_shared_gpus(device)
