"""What of a run is sent, of one that has every kind of probe; no tool is needed for it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.plain_data import from_plain, to_plain
from autotune.process.run_folder import RunFolder
from autotune.run.past_run import reopen
from autotune.trackers import sending as sendings
from autotune.trackers.content import entries, tracked_run
from autotune.trackers.sending import Sending, refuse_missing
from autotune.trackers.tracker import Entry, TrackedRun
from tests.unit.past_run import STUDY, make_run, make_whole_run


def entries_of(run: RunFolder) -> list[Entry]:
    past = reopen(run.path)
    return list(entries(tracked_run(past.job, past.facts, past.run), past))


def test_each_probe_and_the_whole_are_entries_with_states_of_their_own(tmp_path: Path) -> None:
    *probes, whole = entries_of(make_whole_run(tmp_path))
    assert [(entry.outcome, entry.state) for entry in probes[:6]] == [
        ("ok", "finished"),
        ("ok", "finished"),
        ("oom", "failed"),
        ("crash", "failed"),
        ("ok", "finished"),
        ("interrupted", "killed"),
    ]
    assert probes[2].reason == "it was oom"
    first = probes[0].metrics
    error = first["estimated_tokens_per_s"] / first["tokens_per_s"] - 1
    assert first["tokens_per_s_estimate_error"] == error
    assert "tokens_per_s_estimate_error" not in probes[2].metrics
    assert (whole.state, whole.outcome, whole.reason) == ("finished", "recommended", "all probed")
    assert whole.metrics["probe"] == 1 and whole.metrics["verified"] == 1
    assert whole.bundle == str(tmp_path / "run" / "bundle")
    assert whole.config == probes[1].config
    assert len({entry.mark for entry in (*probes, whole)}) == len(probes) + 1


def test_a_run_that_was_killed_says_so_and_has_no_bundle(tmp_path: Path) -> None:
    whole = entries_of(make_run(tmp_path))[-1]
    assert (whole.outcome, whole.state, whole.bundle) == ("cut_short", "failed", None)
    assert "tokens_per_s" not in whole.metrics


def test_a_recommendation_that_did_not_hold_is_left_out_with_its_bundle(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    stored = json.loads(run.recommendation.read_text(encoding="utf-8"))
    stored["chosen"]["probe"] = 2  # it ran out of memory
    run.recommendation.write_text(json.dumps(stored), encoding="utf-8")
    whole = entries_of(run)[-1]
    assert (whole.bundle, whole.outcome) == (None, "recommended")
    assert "verified" not in whole.metrics and "tokens_per_s" not in whole.metrics


def test_a_probe_is_sent_once_and_a_result_again_where_it_differs(tmp_path: Path) -> None:
    *probes, whole = entries_of(make_whole_run(tmp_path))
    assert replace(probes[0], reason="another").mark == probes[0].mark
    assert replace(whole, reason="another").mark != whole.mark


def test_what_is_sent_is_plain_data_that_says_whose_it_is(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    past = reopen(run.path)
    tracked = tracked_run(past.job, past.facts, run)
    assert (tracked.id, tracked.name) == (STUDY, "run")
    assert from_plain(TrackedRun, to_plain(tracked)) == tracked
    for entry in entries_of(run):
        assert from_plain(Entry, to_plain(entry)) == entry


def test_a_package_that_is_missing_or_a_mere_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("no_such_tracker", "nor_this"):
        with pytest.raises(UserError, match=f"pip install {name}"):
            refuse_missing([name])


def test_a_tool_that_cannot_begin_is_told_once_with_what_sends_it_later(tmp_path: Path) -> None:
    """Its package is missing here, or its file of what was sent cannot be."""
    run, said = make_whole_run(tmp_path), list[str]()
    run.tracking.write_text("in the way", encoding="utf-8")
    sending = Sending(["tensorboard"], run, said.append)
    sending.start()
    past = reopen(run.path)
    sending.finish(past, tracked_run(past.job, past.facts, run))
    sending.close()
    (warning,) = said
    assert warning.startswith("tracking with tensorboard: ")
    assert f"`autotune report {run.path} --track tensorboard` sends the rest later" in warning


@pytest.mark.parametrize(
    ("tool", "fault"),
    [
        ("crashes", "it ended (exit code -6)"),
        ("hangs", "not all was sent, and it did nothing more for 0.2 s"),
    ],
)
def test_a_tool_that_crashes_or_hangs_holds_nobody_up_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, fault: str
) -> None:
    monkeypatch.setattr(sendings, "WORKER", "tests.unit.trackers.stand_in")
    monkeypatch.setattr(sendings, "QUIET_S", 0.2 if tool == "hangs" else 60.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    run, said = make_whole_run(tmp_path), list[str]()
    past = reopen(run.path)
    sending = Sending([tool], run, said.append)
    sending.start()
    sending.finish(past, tracked_run(past.job, past.facts, run))
    assert sending.tools == ()
    (warning,) = said
    assert warning.startswith(f"tracking with {tool}: {fault} (log: ")
