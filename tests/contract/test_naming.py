"""The name that an ending gets: what was a crash, what ran out of memory, what hung."""

import signal
from typing import Any

import pytest
from staging import Stage

from autotune.probe.outcome import NEAR_LIMIT, name_outcome
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.process.limits import Ending
from autotune.process.messages import read_json
from tests.unit.builders import make_probe_request

MIB = 2**20
LIMIT = 200 * MIB


def request(limit: int | None = LIMIT) -> ProbeRequest:
    return make_probe_request(memory_limit_bytes=limit)


def measurement_of(stage: Stage, ending: Ending, limit: int | None = LIMIT) -> Measurement:
    return name_outcome(ending, read_json(stage.folder.reply), request(limit))


def test_a_child_killed_near_its_limit_ran_out_of_memory(stage: Stage) -> None:
    ending = stage.run("holds_and_is_killed", bytes=LIMIT)
    assert ending.max_rss_bytes is not None and ending.max_rss_bytes >= NEAR_LIMIT * LIMIT
    measurement = measurement_of(stage, ending)
    assert (measurement.outcome, measurement.inferred) == ("oom", True)
    assert measurement.memory_limit_bytes == LIMIT


@pytest.mark.parametrize(("held_bytes", "limit"), [(MIB, LIMIT), (LIMIT, 4 * LIMIT), (LIMIT, None)])
def test_a_child_killed_far_from_its_limit_says_nothing_of_its_candidate(
    stage: Stage, held_bytes: int, limit: int | None
) -> None:
    measurement = measurement_of(stage, stage.run("holds_and_is_killed", bytes=held_bytes), limit)
    assert (measurement.outcome, measurement.inferred) == ("interrupted", True)
    assert measurement.reason == "another process ended it by SIGKILL"


def test_a_child_that_hangs_near_its_limit_ran_out_of_memory(stage: Stage) -> None:
    ending = stage.run("holds_and_sleeps", bytes=LIMIT, stall_s=1.0)
    assert ending.why == "stall"
    measurement = measurement_of(stage, ending)
    assert (measurement.outcome, measurement.inferred) == ("oom", True)


def test_a_child_that_hangs_holding_little_timed_out(stage: Stage) -> None:
    measurement = measurement_of(stage, stage.run("asleep", stall_s=0.5))
    assert (measurement.outcome, measurement.inferred) == ("timeout", True)


def test_a_child_past_its_time_timed_out(stage: Stage) -> None:
    assert measurement_of(stage, stage.run("deaf", wall_s=0.3)).outcome == "timeout"


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        ("silent", "exit code 0 before its reply was complete"),
        ("draft_only", "exit code 0 before its reply was complete"),
        ("garbled_reply", "exit code 0 before its reply was complete"),
        ("raises", "exit code 1 before its reply was complete"),
        ("wants_too_much", "exit code 1 before its reply was complete"),
        ("aborts", "SIGABRT"),
        ("segfaults", "SIGSEGV"),
    ],
)
def test_silence_is_a_crash_that_says_how_it_ended(stage: Stage, worker: str, reason: str) -> None:
    measurement = measurement_of(stage, stage.run(worker))
    assert measurement.outcome == "crash"
    assert reason in measurement.reason


@pytest.mark.parametrize("reply", ["", '{"outcome": "ok", "rea', "[" * 200_000, "nothing"])
def test_half_a_reply_is_a_crash(stage: Stage, reply: str) -> None:
    measurement = measurement_of(stage, stage.run("says", reply=reply))
    assert measurement.outcome == "crash"
    assert "before its reply was complete" in measurement.reason


@pytest.mark.parametrize(
    "reply",
    [
        "{}",
        "[1, 2]",
        "null",
        '"ok"',
        '{"outcome": "splendid", "reason": "x"}',
        '{"outcome": ["ok"], "reason": "x"}',
        '{"outcome": {}, "reason": "x"}',
        '{"outcome": "ok"}',
        '{"outcome": "ok", "reason": 7}',
        '{"outcome": "ok", "reason": "x", "tokens_per_s": "fast"}',
        '{"outcome": "ok", "reason": "x", "tokens_per_s": NaN}',
        '{"outcome": "ok", "reason": "x", "tokens_per_s": true}',
        '{"outcome": "ok", "reason": "x", "peak_memory_bytes": [1]}',
        '{"outcome": "ok", "reason": "x", "stages_s": 3}',
        '{"outcome": "ok", "reason": "x", "failure": "none"}',
    ],
)
def test_a_reply_that_makes_no_sense_is_a_crash(stage: Stage, reply: str) -> None:
    measurement = measurement_of(stage, stage.run("says", reply=reply))
    assert measurement.outcome == "crash"


def test_a_whole_reply_is_taken_and_what_it_says_beyond_is_left(stage: Stage) -> None:
    text = (
        '{"outcome": "ok", "reason": "fine", "tokens_per_s": 12, "peak_memory_bytes": 9, '
        '"from_the_future": 1}'
    )
    measurement = measurement_of(stage, stage.run("says", reply=text))
    assert measurement == Measurement(
        outcome="ok", reason="fine", tokens_per_s=12, peak_memory_bytes=9
    )


def test_an_ok_reply_without_figures_is_a_crash(stage: Stage) -> None:
    text = '{"outcome": "ok", "reason": "fine", "tokens_per_s": 12}'
    assert measurement_of(stage, stage.run("says", reply=text)).outcome == "crash"


def test_a_lost_child_says_nothing_and_a_stopped_one_is_stopped(stage: Stage) -> None:
    ending = stage.run("kills_the_server")
    assert measurement_of(stage, ending).outcome == "interrupted"
    assert name_outcome(ending, None, request(), kernel_killed=True).outcome == "oom"

    def watch(event: dict[str, Any]) -> str | None:
        return "it cannot win"

    measurement = measurement_of(stage, stage.run("ticks", watch=watch))
    assert (measurement.outcome, measurement.reason) == ("stopped", "it cannot win")


def test_a_kill_by_the_kernel_is_out_of_memory_however_little_was_held(stage: Stage) -> None:
    ending = stage.run("killed")
    assert ending.signal == signal.SIGKILL
    measurement = name_outcome(ending, None, request(), kernel_killed=True)
    assert (measurement.outcome, measurement.inferred) == ("oom", True)
