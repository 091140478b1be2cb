"""The study of a run, in a SQLite file in folders of all names."""

import sqlite3
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import UserError
from autotune.probe.protocol import OUTCOMES, Measurement
from autotune.search.study import NEVER_RUNS, STUDY_NAME, Study
from tests.unit.builders import make_estimate, make_facts, make_job, make_sampler, make_space, ok

PINNED = {
    "optim": "adamw_torch",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "attn_implementation": "sdpa",
    "loss_type": "chunked_nll",
}
JOB = make_job(
    global_batch_size=4,
    tuning="lora",
    recipe={"lora_target_modules": ["attention", ["q_proj", "k_proj"]]},
    fixed=PINNED,
)
SPACE = make_space(JOB, make_facts())


def open_study(folder, *, space=SPACE, allowed_bytes=1000, estimates=None):
    return Study(
        space,
        folder / "study.db",
        STUDY_NAME,
        allowed_bytes=allowed_bytes,
        sampler=make_sampler(space, estimates, allowed_bytes),
    )


def measurement(outcome: str, **fields) -> Measurement:
    if outcome == "ok":
        return replace(ok(50.0, 900), **fields)
    return Measurement(outcome=outcome, reason="so it went", **fields)


def plain_trials(folder):
    """The trials as anybody reads them who has Optuna and nothing of ours."""

    def connect():
        return sqlite3.connect(folder / "study.db")

    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect})
    study = optuna.load_study(study_name=STUDY_NAME, storage=storage)
    trials = study.get_trials()
    storage.engine.dispose()
    return trials


def test_every_candidate_is_probed_once_and_then_none_is_left(nasty_dir):
    study = open_study(nasty_dir)
    proposals = []
    for count in range(len(SPACE.candidates), 0, -1):
        assert study.candidates_left() == count
        trial, candidate = study.ask()
        proposals.append(candidate.key)
        study.tell(trial, measurement("ok" if count % 2 else "oom"))
    assert study.candidates_left() == 0
    assert sorted(proposals) == sorted(candidate.key for candidate in SPACE.candidates)
    assert (nasty_dir / "study.db").is_file()


def test_candidates_that_are_left_out_are_neither_asked_nor_counted(tmp_path):
    study = open_study(tmp_path)
    left_out_keys = frozenset(candidate.key for candidate in SPACE.candidates[::2])
    study.leave_out(left_out_keys)
    keys = [candidate.key for candidate in SPACE.candidates if candidate.key not in left_out_keys]
    proposals = []
    for count in range(len(keys), 0, -1):
        assert study.candidates_left() == count
        trial, candidate = study.ask()
        proposals.append(candidate.key)
        study.tell(trial, measurement("ok" if count % 2 else "oom"))
    assert study.candidates_left() == 0
    assert sorted(proposals) == sorted(keys)


def test_a_candidate_counts_once_whether_it_was_probed_or_left_out_or_both(tmp_path):
    study = open_study(tmp_path)
    trial, candidate = study.ask()
    study.tell(trial, measurement("oom"))
    other = next(one for one in SPACE.candidates if one != candidate)
    study.leave_out(frozenset({candidate.key, other.key}))
    assert study.candidates_left() == len(SPACE.candidates) - 2
    study.leave_out(frozenset())
    assert study.candidates_left() == len(SPACE.candidates) - 1


def test_a_space_of_one_candidate_is_probed_once(tmp_path):
    space = replace(
        SPACE,
        candidates=SPACE.candidates[:1],
        knobs=tuple(replace(k, values=(SPACE.candidates[0][k.name],)) for k in SPACE.knobs),
    )
    study = open_study(tmp_path, space=space)
    trial, candidate = study.ask()
    study.tell(trial, measurement("busy"))
    assert (candidate, study.candidates_left()) == (SPACE.candidates[0], 1)
    trial, candidate = study.ask()
    study.tell(trial, measurement("crash"))
    assert (candidate, study.candidates_left()) == (SPACE.candidates[0], 0)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_ends_its_trial_and_its_candidate_as_documented(tmp_path, outcome):
    study = open_study(tmp_path)
    trial, candidate = study.ask()
    study.tell(trial, measurement(outcome))
    (plain_trial,) = plain_trials(tmp_path)
    silent = outcome in ("busy", "interrupted")
    expected = TrialState.FAIL if silent else TrialState.PRUNED
    assert plain_trial.state == (TrialState.COMPLETE if outcome == "ok" else expected)
    assert plain_trial.value == (50.0 if outcome == "ok" else None)
    not_running = outcome in ("timeout", "crash", "unstable", "unsupported")
    assert plain_trial.constraints.get("runs") == (NEVER_RUNS if not_running else None)
    assert ("memory" in plain_trial.constraints) == (outcome in ("ok", "oom"))
    next_candidate = study.ask()[1]
    assert (next_candidate == candidate) == silent


@pytest.mark.parametrize(
    ("measurement_told", "excess"),
    [
        (measurement("ok", peak_memory_bytes=900), -100.0),
        (measurement("ok", peak_memory_bytes=1250), 250.0),
        (measurement("oom", missing_bytes=70, memory_limit_bytes=1100), 170.0),
        (measurement("oom", missing_bytes=70), 70.0),
        (measurement("oom"), 1.0),
    ],
)
def test_the_constraint_is_the_bytes_beyond_what_is_allowed(tmp_path, measurement_told, excess):
    study = open_study(tmp_path)
    study.tell(study.ask()[0], measurement_told)
    assert plain_trials(tmp_path)[0].constraints == {"memory": excess}


def test_the_whole_measurement_is_read_back_without_us(nasty_dir):
    study = open_study(nasty_dir)
    original = measurement(
        "oom",
        missing_bytes=3 * 2**40,
        stages_s={"train": 1.5},
        failure={"type": "MemoryError", "message": "ü ñ 日本"},
        processes=[{"pid": 3, "used_bytes": None}],
    )
    trial, candidate = study.ask()
    study.tell(trial, original)
    (plain_trial,) = plain_trials(nasty_dir)
    assert Measurement.from_plain(plain_trial.user_attrs["measurement"]) == original
    assert plain_trial.user_attrs["candidate"] == candidate.knobs
    assert plain_trial.params["gradient_checkpointing"] is candidate["gradient_checkpointing"]
    assert plain_trial.params["lora_target_modules"] in ("attention", "q_proj,k_proj")
    (record,) = study.records()
    assert (record.number, record.candidate, record.measurement) == (0, candidate, original)


def test_a_run_goes_on_where_it_was_killed(nasty_dir):
    first = open_study(nasty_dir)
    trial, candidate = first.ask()
    first.tell(trial, measurement("ok"))
    _, lost_candidate = first.ask()
    del first
    second = open_study(nasty_dir)
    assert [record.measurement is None for record in second.records()] == [False, True]
    assert [record.candidate for record in second.records()] == [candidate, lost_candidate]
    (unfinished,) = second.running()
    assert unfinished.number == 1
    second.tell(unfinished, measurement("interrupted"))
    assert second.running() == []
    assert second.candidates_left() == len(SPACE.candidates) - 1


def test_what_was_to_be_probed_when_a_run_was_killed_is_forgotten(tmp_path):
    first = open_study(tmp_path)
    trial, best = first.ask()
    first.tell(trial, measurement("ok"))
    first._study.enqueue_trial(trial.params)
    del first
    second = open_study(tmp_path)
    second.drop_waiting()
    assert [record.candidate for record in second.records()] == [best]
    _, candidate = second.ask()
    assert candidate != best


def test_a_trial_without_a_candidate_is_closed_and_no_record(tmp_path):
    study = open_study(tmp_path)
    bare = study._study.ask()
    assert study.records() == []
    study.abandon(bare)
    assert plain_trials(tmp_path)[0].state == TrialState.FAIL
    assert study.candidates_left() == len(SPACE.candidates)


def test_a_probe_that_cannot_win_is_stopped_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("autotune.search.study.REPORT_S", 0.0)
    study = open_study(tmp_path)
    trial, _ = study.ask()
    watch = study.cannot_win(trial)
    assert watch({"event": "estimate", "step": 1, "optimistic_tokens_per_s": 1.0}) is None
    study.tell(trial, measurement("ok", tokens_per_s=100.0))
    trial, _ = study.ask()
    watch = study.cannot_win(trial)
    assert watch({"event": "micro_step", "n": 1}) is None
    assert watch({"event": "estimate", "step": 1, "optimistic_tokens_per_s": 101.0}) is None
    reason = watch({"event": "estimate", "step": 2, "optimistic_tokens_per_s": 99.0})
    assert reason == "at best 99 tokens/s after step 2: it cannot win"


def test_quick_steps_are_not_reported_one_by_one(tmp_path):
    study = open_study(tmp_path)
    study.tell(study.ask()[0], measurement("ok", tokens_per_s=100.0))
    trial, _ = study.ask()
    watch = study.cannot_win(trial)
    for step in range(1, 4):
        watch({"event": "estimate", "step": step, "optimistic_tokens_per_s": 101.0})
    assert plain_trials(tmp_path)[-1].intermediate_values == {1: 101.0}


def test_with_estimates_the_fastest_that_fits_comes_first(tmp_path):
    estimates = {
        candidate.key: make_estimate(900 if number != 5 else 2000, tokens_per_s=100.0 + number)
        for number, candidate in enumerate(SPACE.candidates)
    }
    study = open_study(tmp_path, estimates=estimates)
    assert study.ask()[1] == SPACE.candidates[-1]
    estimates[SPACE.candidates[5].key] = make_estimate(2000, tokens_per_s=1e6)
    (tmp_path / "other").mkdir()
    study = open_study(tmp_path / "other", estimates=estimates)
    assert study.ask()[1] == SPACE.candidates[-1]


def test_before_anything_fits_no_gain_is_expected_of_the_next_probe(tmp_path):
    estimates = {c.key: make_estimate(900, tokens_per_s=100.0) for c in SPACE.candidates}
    study = open_study(tmp_path, estimates=estimates)
    assert study.gain() is None
    study.tell(study.ask()[0], measurement("oom", missing_bytes=5))
    assert study.gain() is None
    study.tell(study.ask()[0], measurement("ok", tokens_per_s=50.0))
    assert 0 < study.gain() < 0.2
    assert 40 < study.expected_values()[SPACE.candidates[0].key] < 60


def test_a_candidate_that_was_probed_can_be_asked_again(tmp_path):
    study = open_study(tmp_path)
    for _ in SPACE.candidates:
        trial, last = study.ask()
        study.tell(trial, measurement("ok"))
    trial, candidate = study.ask_for(last)
    assert candidate == last
    study.tell(trial, measurement("ok", tokens_per_s=60.0))
    assert [r.measurement.tokens_per_s for r in study.records() if r.candidate == last] == [50, 60]


def test_a_stopped_probe_leaves_what_it_had_measured_as_its_last_value(tmp_path):
    study = open_study(tmp_path)
    trial, _ = study.ask()
    study.cannot_win(trial)({"event": "estimate", "step": 1, "optimistic_tokens_per_s": 90.0})
    study.tell(trial, measurement("stopped", tokens_per_s=70.0))
    (plain_trial,) = plain_trials(tmp_path)
    assert plain_trial.state == TrialState.PRUNED
    assert plain_trial.intermediate_values[plain_trial.last_step] == 70.0


def test_a_storage_that_cannot_be_opened_is_a_users_error():
    with pytest.raises(UserError, match="cannot open the study"):
        Study(SPACE, "nonsense://x", "name", allowed_bytes=None)


@pytest.mark.parametrize("form", [lambda path: path, lambda path: f"sqlite:///{path}"])
def test_who_looks_at_a_study_makes_none(form, nasty_dir):
    database = nasty_dir / "study.db"
    with pytest.raises(UserError, match="cannot open the study"):
        Study(SPACE, form(database), "name", allowed_bytes=None)
    assert not database.exists()
    database.touch()
    with pytest.raises(UserError, match="cannot open the study"):
        Study(SPACE, form(database), "name", allowed_bytes=None)
    assert database.read_bytes() == b""
    database.unlink()
    made = Study(SPACE, form(database), "a", allowed_bytes=None, sampler=make_sampler(SPACE))
    assert Study(SPACE, form(database), "a", allowed_bytes=None).records() == made.records() == []
    with pytest.raises(UserError, match="it holds no study `b`"):
        Study(SPACE, form(database), "b", allowed_bytes=None)
