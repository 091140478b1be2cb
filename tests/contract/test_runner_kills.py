"""What the parent ends, and that nothing of it is left."""

import signal
from typing import Any

import pytest
from staging import Stage, still_running


def test_a_hang_that_ignores_sigterm_is_killed_with_its_group(stage: Stage) -> None:
    ending = stage.run("deaf", wall_s=0.5)
    assert (ending.why, ending.signal) == ("wall", signal.SIGKILL)
    assert 0.5 <= ending.seconds < 10
    assert len(stage.pids()) == 2
    assert still_running(stage.pids()) == []


def test_a_hang_that_uses_no_processor_is_a_stall(stage: Stage) -> None:
    ending = stage.run("asleep", stall_s=0.5)
    assert (ending.why, ending.signal) == ("stall", signal.SIGKILL)
    assert ending.rss_at_stop_bytes is not None and ending.rss_at_stop_bytes > 2**20
    assert still_running(stage.pids()) == []


def test_a_child_that_somebody_stops_is_a_stall(stage: Stage) -> None:
    ending = stage.run("stopped", stall_s=0.5)
    assert (ending.why, ending.signal) == ("stall", signal.SIGKILL)
    assert still_running(stage.pids()) == []


def test_a_child_that_computes_in_silence_is_no_stall(stage: Stage) -> None:
    assert stage.run("deaf", stall_s=0.3, wall_s=1.2).why == "wall"


def test_a_child_that_waits_for_its_own_busy_child_is_no_stall(stage: Stage) -> None:
    """The compiler of a DeepSpeed kernel runs for a minute while the worker waits."""
    ending = stage.run("waits_for_a_compiler", stall_s=0.5)
    assert (ending.why, ending.exit_code) == ("exited", 0)


def test_a_child_that_works_on_without_progress_is_given_up_on_a_busy_machine_too(
    stage: Stage,
) -> None:
    """It gets little of a core, so that its processor time tells nothing."""
    ending = stage.run("talks_once", busy_s=0.5, silent_s=0.8)
    assert (ending.why, len(ending.events)) == ("stall", 1) and ending.seconds < 5
    assert stage.run("talks_while_asleep", busy_s=0.5, silent_s=0.8).why == "exited"


def test_a_child_that_makes_progress_asleep_is_no_stall(stage: Stage) -> None:
    ending = stage.run("talks_while_asleep", stall_s=0.8)
    assert (ending.why, ending.exit_code, len(ending.events)) == ("exited", 0, 6)


@pytest.mark.parametrize("worker", ["leaves_one_in_its_group", "leaves_one_that_escaped"])
def test_a_grandchild_left_behind_is_killed(stage: Stage, worker: str) -> None:
    ending = stage.run(worker)
    assert (ending.why, ending.exit_code) == ("exited", 0)
    assert len(stage.pids()) == 1
    assert still_running(stage.pids(), within_s=0.0) == []


def test_a_grandchild_that_escaped_is_counted(stage: Stage) -> None:
    assert stage.run("leaves_one_that_escaped").strays == 1


@pytest.mark.parametrize("limits", [{"wall_s": 0.5}, {"stall_s": 0.5}])
def test_a_kill_reaches_what_escaped(stage: Stage, limits: dict[str, float]) -> None:
    ending = stage.run("escapes_and_sleeps", **limits)  # type: ignore[arg-type]
    assert ending.signal == signal.SIGKILL
    assert len(stage.pids()) == 2
    assert still_running(stage.pids(), within_s=0.0) == []


def test_progress_reaches_the_watcher_in_order_and_its_reason_stops_the_child(
    stage: Stage,
) -> None:
    ticks: list[int] = []

    def watch(event: dict[str, Any]) -> str | None:
        ticks.append(event["number"])
        return f"it cannot win ({event['number']})" if event["number"] == 20 else None

    ending = stage.run("ticks", watch=watch)
    assert (ending.why, ending.signal) == ("stopped", signal.SIGKILL)
    assert ending.stop_reason == "it cannot win (20)"
    assert ticks[:21] == list(range(21))
    numbers = [event["number"] for event in ending.events]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < 200
    assert still_running(stage.pids()) == []


def test_a_watcher_that_raises_ends_its_child_and_leaves_the_server_usable(stage: Stage) -> None:
    def watch(event: dict[str, Any]) -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.run("ticks", watch=watch)
    assert still_running(stage.pids()) == []
    assert stage.run("exits", code=7, wall_s=5.0).exit_code == 7


def test_a_server_that_does_not_react_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill that never takes hold (a driver that hangs, a stopped server) is not waited for."""
    monkeypatch.setattr("autotune.process.child_server._KILL_S", 0.5)
    monkeypatch.setattr("autotune.process.child_server._CLOSE_S", 0.5)
    ending = stage.run("stops_the_server", wall_s=0.3)
    assert (ending.why, ending.by_another) == ("lost", False)
    assert still_running(stage.pids()) == []
    assert stage.run("exits", code=7).exit_code == 7
