"""The rows of a run that goes on, beyond what the recorded screens show (`contract/screens`)."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from autotune.cli.views.events import RunEvents
from autotune.report.live_rows import LiveState, rows, whole_seconds
from autotune.run.bundle_launch import STAGE_TEXTS
from autotune.run.listener import Listener, Listeners, ProbeSteps, Standing, follow_probe
from autotune.search.rules.stopping import Outlook
from autotune.units import format_bytes
from tests.unit.builders import GIB, make_candidate

SURVEYED = {"limit_bytes": 10 * GIB, "candidates": 8, "free_knobs": ["loss_type"]}
STANDING = {
    "probes": 1,
    "most_probes": 40,
    "probing_s": 9.0,
    "most_probing_s": 1800.0,
    "left_s": 63.0,
    "total_left_s": None,
    "candidates_left": 7,
    "best": None,
    "allowed_bytes": 9 * GIB,
    "outlook": None,
}


def followed(*events: tuple[str, dict[str, Any]]) -> LiveState:
    """The state after events, a second apart."""
    state = LiveState(began=0.0)
    for now, (kind, data) in enumerate(events, 1):
        state.take(kind, data, float(now))
    return state


def shown(state: LiveState, now: float) -> dict[str, str]:
    """The rows by their names."""
    return dict(rows(state, now))


def test_a_run_in_which_nothing_fits_yet_says_so_and_promises_nothing() -> None:
    seen = shown(followed(("surveyed", SURVEYED), ("standing", STANDING)), 2.0)
    assert seen["best"] == "none yet: nothing that was probed fits"
    assert "gain" not in seen and "memory" not in seen
    assert seen["time"] == "the search takes up to about 63 s more"


def test_a_probe_that_runs_counts_against_the_budget() -> None:
    probing = {"probe": 1, "knobs": make_candidate().knobs}
    state = followed(("surveyed", SURVEYED), ("standing", STANDING), ("probing", probing))
    assert shown(state, 3.0)["budget"] == "1 of 40 probes; 9 s of 30 min"
    later = shown(state, 13.0)
    assert later["budget"] == "1 of 40 probes; 19 s of 30 min"
    assert later["now"] == "probe 1, 10 s: 4x4 chunked_nll"
    assert later["time"] == "the search takes up to about 52 s more"


def test_a_gain_without_a_length_of_the_job_is_a_share() -> None:
    outlook = {"gain": 0.123, "job_s": None, "cost_s": 9.0}
    state = followed(("standing", {**STANDING, "outlook": outlook}))
    assert shown(state, 1.0)["gain"] == "this probe is expected to be 12.3% faster"
    state.take("stopped", {"reason": "it is over"}, 2.0)
    assert "gain" not in shown(state, 2.0)


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        ("sft", "then timed steps, evaluation, save"),
        ("ppo", "then timed steps, save"),
    ],
)
def test_the_stages_of_a_launch_are_those_of_its_method(method: str, stages: str) -> None:
    state = followed(
        ("surveying", {"method": method}),
        ("verifying", {"probe": 3}),
        ("verification_stage", {"stage": "data", "seconds": 1.0}),
    )
    assert shown(state, 5.0)["steps"] == f"now worst batch, 2 s; done rows 1.0 s; {stages}"


def test_a_launch_that_comes_again_begins_anew_after_its_rows() -> None:
    over = [("verification_stage", {"stage": name, "seconds": 1.0}) for name in ("data", "save")]
    again = ("verification_stage", {"stage": "too slow; so it is launched again", "seconds": 9.0})
    probing = {"probe": 5, "knobs": make_candidate().knobs}
    state = followed(("surveying", {"method": "sft"}), ("verifying", {"probe": 3}), *over, again)
    assert shown(state, 5.0)["steps"].startswith("now worst batch, 0 s; done rows 1.0 s; then")
    state.take("probing", probing, 6.0)
    assert shown(state, 6.0)["steps"] == "a process starts"
    state.take("probed", {"probe": 5}, 7.0)
    assert shown(state, 7.0)["now"] == "verifying, 0 s: the bundle of probe 3 is launched"


@pytest.mark.parametrize("last", ["end", "soak"])
def test_the_end_of_a_launch_is_no_launch_that_comes_again(last: str) -> None:
    stages = ("data", "worst_batch", "timed_steps", "evaluation", "save")
    assert {*stages, last} <= set(STAGE_TEXTS)
    over = [("verification_stage", {"stage": name, "seconds": 1.0}) for name in (*stages, last)]
    state = followed(("surveying", {"method": "sft"}), ("verifying", {"probe": 3}), *over)
    assert [name for name, _ in state.stages] == list(stages)


def test_a_promise_comes_again_where_the_search_goes_on_after_a_close_call() -> None:
    outlook = {"gain": 0.1, "job_s": 100.0, "cost_s": 5.0}
    state = followed(
        ("surveyed", SURVEYED), ("standing", STANDING), ("settling", {"probes": [1, 3]})
    )
    assert "too close to call" in shown(state, 4.0)["gain"] and "time" not in shown(state, 4.0)
    state.take("standing", {**STANDING, "outlook": outlook}, 5.0)
    assert "too close to call" not in shown(state, 6.0)["gain"]
    assert "more" in shown(state, 6.0)["time"]


def test_nothing_that_a_terminal_would_obey_comes_through() -> None:
    state = followed(("trying", {"text": "a\x1b[2Jb"}))
    assert shown(state, 1.0)["now"] == "trying, 0 s: a\\x1b[2Jb"


def test_times_are_short() -> None:
    texts = [whole_seconds(seconds) for seconds in (-1.0, 0.4, 119.9, 300.0, 310.0, 36000.0)]
    assert texts == ["0 s", "0 s", "119 s", "5 min", "5 min 10 s", "10.0 h"]


def test_the_steps_of_a_probe_follow_from_what_its_child_tells() -> None:
    steps = ProbeSteps()
    told: list[dict[str, Any]] = [
        {"event": "planned", "micro_steps": 34},
        {"event": "built"},
        {"event": "micro_step", "n": 4, "seconds": 0.1},
        {"event": "warm_up", "step": 2, "peak_memory_bytes": GIB},
        {"event": "estimate", "tokens_per_s": 99.0, "relative_uncertainty": 0.2},
        {"event": "something", "else": 1},
    ]
    stages = []
    for event in told:
        steps = steps.after(event)
        stages.append(steps.stage)
    assert stages == ["build", "train", "train", "train", "train", "train"]
    assert asdict(steps) == {
        "stage": "train",
        "micro_steps": 4,
        "most_micro_steps": 34,
        "tokens_per_s": 99.0,
        "relative_uncertainty": 0.2,
        "peak_memory_bytes": GIB,
    }
    state = followed(("surveyed", SURVEYED), ("stepping", asdict(steps)))
    assert shown(state, 2.0)["steps"] == "4 of at most 34 micro-steps; 99 tokens/s +-20%"
    assert f"peak {format_bytes(GIB)} of 10 GiB" in shown(state, 2.0)["memory"]


def test_how_a_search_stands_is_an_event_and_each_step_is_not() -> None:
    events: list[tuple[str, str]] = []
    heard: list[object] = []

    class Sink:
        def write(self, kind: str, **data: Any) -> None:
            events.append((kind, json.dumps(data, allow_nan=False)))

    class Heard(Listener):
        def standing(self, standing: Standing) -> None:
            heard.append(standing)

        def stepping(self, steps: ProbeSteps) -> None:
            heard.append(steps.micro_steps)

    listener = Listeners(RunEvents(Sink()), Heard())
    promise = Outlook(gain=0.1, job_s=60.0, cost_s=9.0)
    standing = Standing(**{**STANDING, "outlook": promise})
    listener.standing(standing)
    watch = follow_probe(listener, lambda event: "enough" if event["n"] == 2 else None)
    assert [watch({"event": "micro_step", "n": n}) for n in (1, 2)] == [None, "enough"]
    assert heard == [standing, 1, 2]
    ((kind, data),) = events
    assert (kind, json.loads(data)) == ("standing", {**STANDING, "outlook": asdict(promise)})


def test_an_attempt_that_was_cut_off_leaves_nothing_to_the_next_one() -> None:
    """As a service's run has several, and its steps are told by nobody."""
    state = LiveState(began=0.0, hears_steps=False)
    state.take("ruled_out", {"reasons": {"its estimate exceeds the memory limit": 3}}, 1.0)
    state.take("probing", {"probe": 2, "knobs": make_candidate(2, 8).knobs}, 2.0)
    assert state.steps is None and state.probing_since == 2.0
    state.take("verifying", {"probe": 2}, 3.0)
    state.take("surveying", {"method": "sft"}, 4.0)
    assert state.probing_since is None and not state.verifying and not state.ruled_out
    assert (state.doing, state.method, state.hears_steps) == ("surveying", "sft", False)
