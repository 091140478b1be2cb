"""The loop of a run with probes made up: what it asks, when it ends, what it does with ties."""

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autotune.errors import MachineError
from autotune.estimate.residual import Residual
from autotune.probe.outcome import busy_text
from autotune.process.run_folder import RunFolder
from autotune.run import loop
from autotune.run.conclusion import conclude, left_out, saving
from autotune.run.deadline import Deadline
from autotune.run.expectations import Expectations
from autotune.run.job_session import JobSession
from autotune.run.listener import Listener
from autotune.run.loop import (
    CANNOT_FIT,
    probe_again,
    reserved_s,
    ruled_out,
    search,
    settle,
)
from autotune.run.nothing_measured import nothing_measured
from autotune.run.session import Options
from autotune.search.recommend import Recommendation, recommend
from autotune.search.sampler.params import guided_sampler
from autotune.search.study import Study
from tests.unit.builders import bad, make_estimate, make_facts, make_job, make_space, ok
from tests.unit.run.made_engine import MadeEngine, candidate_of_call

PINNED = {
    "padding_free": False,
    "train_sampling_strategy": "random",
    "attn_implementation": "sdpa",
    "gradient_checkpointing": False,
}
ALLOWED, LIMIT = 900, 1000


def speed_of(candidate):
    """Micro-batch 8 is the fastest; the loss and the optimizer hardly matter."""
    speed = {1: 100.0, 2: 150.0, 4: 190.0, 8: 200.0}[candidate.micro_batch]
    return speed * (1.001 if candidate["loss_type"] == "nll" else 1.0)


class Stub:
    """A session whose probes answer what `answer` says; `asked` are the candidates, in order."""

    def __init__(self, folder, monkeypatch, *, answer=None, budget=None, epochs=1.0, **job):
        self.asked, self.answer = [], answer or (lambda candidate, n: ok(speed_of(candidate), 500))
        fields = {
            "global_batch_size": 8,
            "fixed": PINNED,
            "budget": budget or {"probes": 30},
            **job,
        }
        made = make_job(training={"num_train_epochs": epochs}, **fields)
        facts = make_facts()
        space = make_space(made, facts)
        estimates = {
            c.key: make_estimate(500, tokens_per_s=1.1 * speed_of(c)) for c in space.candidates
        }
        prior = Residual(relative_sigma=0.02)
        self.session = JobSession(
            job=made,
            run=RunFolder(path=folder),
            facts=facts,
            space=space,
            study=Study(
                space,
                folder / "study.db",
                "a",
                allowed_bytes=ALLOWED,
                sampler=guided_sampler(space, estimates, prior, allowed_bytes=ALLOWED),
            ),
            server=None,
            engine=MadeEngine(self._measure),
            listener=Listener(),
            limit_bytes=LIMIT,
            allowed_bytes=ALLOWED,
            expectations=Expectations(estimates=estimates, prior=prior, limit_bytes=LIMIT),
            options=Options(),
        )
        monkeypatch.setattr(loop, "PAUSES_S", (0.0, 0.0))

    def _measure(self, call):
        candidate = candidate_of_call(call)
        self.asked.append(candidate)
        measurement = self.answer(candidate, len(self.asked))
        return replace(measurement, seconds=5.0, tokens_per_epoch=1e6)

    @property
    def records(self):
        return self.session.study.records()


def test_the_fastest_expected_comes_first_and_a_short_job_is_not_searched_for_long(
    tmp_path, monkeypatch
):
    stub = Stub(tmp_path, monkeypatch, epochs=0.01)
    reason = search(stub.session)
    assert len(stub.asked) == 3
    assert stub.asked[0].micro_batch == 8
    assert reason.startswith("another probe costs about 5.0 s and is expected to save")


def test_a_long_job_is_worth_more_probes(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1000.0)
    search(stub.session)
    assert len(stub.asked) > 3


def test_the_budget_ends_search_and_settling(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, budget={"probes": 5})
    assert search(stub.session) == "the budget of 5 probes is used"
    assert settle(stub.session)
    assert len(stub.asked) == 5


def test_the_fastest_are_measured_in_turns_until_they_are_told_apart(tmp_path, monkeypatch):
    noise = random.Random(1)

    def noisy(candidate, n):
        return ok(speed_of(candidate) * (1 + noise.gauss(0, 0.01)), 500)

    stub = Stub(tmp_path, monkeypatch, answer=noisy, epochs=0.01)
    search(stub.session)
    before = len(stub.asked)
    assert settle(stub.session)
    again = stub.asked[before:]
    assert {c.micro_batch for c in again} == {8}
    assert len(again) == len({c.key for c in again}) >= 2  # one round: more is not worth it
    count = len(stub.asked)
    assert settle(stub.session)  # a resumed run does not begin again
    assert len(stub.asked) == count


def test_the_search_goes_on_where_the_winner_fails_when_it_is_measured_again(tmp_path, monkeypatch):
    def answer(candidate, n):
        seen = sum(one.key == candidate.key for one in stub.asked)
        fails = candidate.micro_batch == 8 and seen > 1
        return bad("oom", missing_bytes=5) if fails else ok(speed_of(candidate), 500)

    stub = Stub(tmp_path, monkeypatch, answer=answer, epochs=0.01)
    search(stub.session)
    for _ in range(20):
        if settle(stub.session):
            break
        search(stub.session)
    best = recommend(stub.records, ALLOWED)
    assert isinstance(best, Recommendation)
    failed = {r.candidate.key for r in stub.records if r.measurement.outcome == "oom"}
    assert failed
    assert best.chosen.candidate.key not in failed


def test_a_busy_device_ends_the_search_and_does_not_hang_the_settling(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=0.01)
    search(stub.session)
    in_use = bad("busy", processes=[{"pid": 1}])
    stub.answer = lambda candidate, n: in_use
    assert settle(stub.session)
    assert len(stub.asked) == 4
    (tmp_path / "other").mkdir()
    busy = Stub(tmp_path / "other", monkeypatch, answer=lambda candidate, n: in_use)
    with pytest.raises(MachineError):
        search(busy.session)


BUSY = replace(ok(1.0), outcome="busy", reason=busy_text(0.93), processor_wait_share=0.93)


def test_a_machine_too_busy_to_measure_is_an_outcome_and_no_recommendation(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, answer=lambda candidate, n: BUSY)
    result = conclude(stub.session, search(stub.session))
    assert len(stub.asked) == 3
    assert (result.outcome, result.recommendation) == ("nothing_stable", None)
    assert result.stop_reason.startswith("the machine was busy 93% of the time, in 3 probes")
    assert result.nothing_measured.what.startswith("the machine was busy 93% of the time")
    assert f": autotune run --resume {tmp_path}" in result.nothing_measured.hint


def test_a_probe_that_others_disturbed_is_repeated_and_the_quiet_one_counts(tmp_path, monkeypatch):
    def answer(candidate, n):
        return BUSY if n in (1, 3) else ok(speed_of(candidate), 500)

    stub = Stub(tmp_path, monkeypatch, answer=answer, epochs=0.01)
    search(stub.session)
    again = {stub.asked[0].key, stub.asked[2].key}
    counted = [r.candidate.key for r in stub.records if r.measurement.outcome == "ok"]
    assert again <= set(counted) and len(stub.asked) == len(counted) + 2
    best = recommend(stub.records, ALLOWED)
    assert best.chosen.tokens_per_s == 200.0 * 1.001
    assert best.rejected == {"busy": (0, 2)}


@pytest.mark.usefixtures("quiet_counts")
def test_a_candidate_is_not_stopped_for_a_speed_that_is_the_machines(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=0.01)
    probe_again(stub.session, stub.session.space.candidates[0])
    trial, _ = stub.session.study.ask()
    watch = stub.session.study.cannot_win(trial)
    event = {"event": "estimate", "step": 1, "optimistic_tokens_per_s": 1.0}
    assert watch({**event, "processor_wait_share": 0.5}) is None
    assert "it cannot win" in watch({**event, "processor_wait_share": 0.01, "step": 2})


def test_every_listed_recipe_value_is_probed_once(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=0.01, recipe={"max_length": [256, 512, 1024]})
    search(stub.session)
    assert {c["max_length"] for c in stub.asked} == {256, 512, 1024}


def test_what_cannot_fit_is_never_probed_and_said_to_be(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6)
    large = [c for c in stub.session.space.candidates if c.micro_batch == 8]
    estimates = dict(stub.session.expectations.estimates)
    estimates |= {c.key: make_estimate(5000, tokens_per_s=1e6) for c in large}
    expectations = replace(stub.session.expectations, estimates=estimates)
    stub.session = replace(stub.session, expectations=expectations)
    search(stub.session)
    assert not any(c.micro_batch == 8 for c in stub.asked)
    against = ruled_out(stub.session, stub.records)
    assert {against[c.key] for c in large} == {CANNOT_FIT}


@pytest.mark.parametrize("outcome", ["ok", "oom", None])
def test_the_saving_is_against_defaults_that_run(tmp_path, monkeypatch, outcome):
    stub = Stub(tmp_path, monkeypatch, epochs=1.0)
    default = stub.session.space.default()
    stub.answer = lambda candidate, n: (
        bad("oom", missing_bytes=1)
        if outcome == "oom" and candidate.key == default.key
        else ok(speed_of(candidate), 500)
    )
    if outcome is not None:
        loop.probe_again(stub.session, default)
    others = (c for c in stub.session.space.candidates if c.micro_batch == 4)
    for candidate in itertools.islice(others, 2):
        loop.probe_again(stub.session, candidate)
    best = recommend(stub.records, ALLOWED)
    assert isinstance(best, Recommendation)
    found = saving(stub.session, best, stub.records)
    if outcome == "oom":
        assert found is None
    else:
        assert found is not None
        assert found.measured == (outcome == "ok")
        assert found.default_s == pytest.approx(1e6 / speed_of(default), rel=0.1)
        assert found.job_s == pytest.approx(1e6 / best.chosen.tokens_per_s)


def test_the_last_probes_of_a_budget_are_kept_for_values_that_the_job_lists(tmp_path, monkeypatch):
    lengths = {"max_length": [256, 512, 1024]}
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, recipe=lengths, budget={"probes": 4})
    promises = []
    stub.session.listener.standing = lambda standing: promises.append(standing.outlook)
    assert search(stub.session) == "the budget of 4 probes is used"
    assert promises[1] is not None and promises[3] is None  # the last is not for its speed
    assert len(stub.asked) == 4
    assert {c["max_length"] for c in stub.asked} == {256, 512, 1024}


def with_total(stub, total_s, import_s):
    """The stub's session with a total budget; its probes are said to take 5 s each."""
    server, deadline = SimpleNamespace(import_s=import_s), Deadline(total_s=total_s)
    stub.session = replace(stub.session, server=server, deadline=deadline)
    return stub.session


def test_a_total_budget_ends_the_search_before_the_time_of_the_verification(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6)
    session = with_total(stub, total_s=38.0, import_s=10.0)
    reason = search(session)
    kept_s = reserved_s(session, stub.records)
    assert 30 < kept_s < 38
    assert reason.startswith("the total budget of 38.0 s has ")
    assert reason.endswith(f"of which {kept_s:.1f} s are for the verification")
    assert settle(session) and len(stub.asked) == 1


def test_where_there_is_no_time_to_verify_anyway_none_is_kept_for_it(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, budget={"probes": 5})
    session = with_total(stub, total_s=30.0, import_s=100.0)
    assert search(session) == "the budget of 5 probes is used"
    assert reserved_s(session, stub.records) == 0
    *_, last = left_out(session, stub.records, recommend(stub.records, ALLOWED), None)
    assert last.startswith("verification: it takes about") and "`autotune verify" in last


def test_a_run_whose_probes_all_timed_out_names_its_log_and_what_to_raise(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, answer=lambda c, n: bad("timeout"), budget={"probes": 2})
    result = conclude(stub.session, search(stub.session))
    assert (result.outcome, result.nothing_fits) == ("nothing_measured", None)
    assert result.nothing_measured.what.startswith("all probes timed out: a probe may take 5 min")
    assert result.nothing_measured.where == str(stub.session.run.probe(1).stderr)
    assert "budget: {probe_minutes: 10}" in result.nothing_measured.hint


def test_a_time_out_beside_lacking_memory_is_not_called_nothing_fits(tmp_path, monkeypatch):
    def answer(candidate, n):
        return bad("timeout") if n == 2 else bad("oom", missing_bytes=5)

    stub = Stub(tmp_path, monkeypatch, answer=answer, budget={"probes": 3})
    search(stub.session)
    problem = nothing_measured(stub.session, stub.records, "the end")
    assert problem is not None and problem.what.startswith("1 of 3 probes timed out")


def test_probes_that_hung_or_crashed_name_the_log_alone(tmp_path, monkeypatch):
    hung = bad("timeout", inferred=True)
    stub = Stub(tmp_path, monkeypatch, answer=lambda c, n: hung, budget={"probes": 1})
    search(stub.session)
    problem = nothing_measured(stub.session, stub.records, "the end")
    assert "the last: it was timeout" in problem.what and "probe_minutes" not in problem.hint
    (tmp_path / "other").mkdir()
    other = tmp_path / "other"
    stub = Stub(other, monkeypatch, answer=lambda c, n: bad("crash"), budget={"probes": 2})
    search(stub.session)
    problem = nothing_measured(stub.session, stub.records, "the end")
    assert "no probe finished (2 x crash)" in problem.what


def test_a_fault_of_the_model_is_not_found_by_every_candidate(tmp_path, monkeypatch):
    failure = {"type": "SafetensorError", "message": "cut", "stage": "build", "knobs": []}
    stub = Stub(tmp_path, monkeypatch, answer=lambda c, n: bad("crash", failure=failure))
    assert "without a setting in common crashed alike" in search(stub.session)
    assert 2 <= len(stub.records) <= 4
    problem = nothing_measured(stub.session, stub.records, "the end")
    assert "x crash); the first: it was crash" in problem.what


def test_probes_that_lacked_memory_are_known_not_to_fit(tmp_path, monkeypatch):
    oom = bad("oom", missing_bytes=5)
    stub = Stub(tmp_path, monkeypatch, answer=lambda c, n: oom, budget={"probes": 3})
    search(stub.session)
    assert nothing_measured(stub.session, stub.records, "the end") is None


def at_once(stub, count):
    """The stub's session on an engine of several lanes."""
    engine = MadeEngine(stub._measure, count)
    stub.session = replace(stub.session, engine=engine)
    return engine


@pytest.mark.parametrize("count", [2, 4])
def test_several_at_once_keep_to_the_budget_and_probe_nothing_twice(tmp_path, monkeypatch, count):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, budget={"probes": 7})
    engine = at_once(stub, count)
    assert search(stub.session) == "the budget of 7 probes is used"
    assert engine.most == count
    assert len(stub.asked) == len({c.key for c in stub.asked}) == 7
    probes = [record.measurement for record in stub.records]  # each has its part of the clock
    part = sum(probe.wall_s for probe in probes) / sum(probe.seconds for probe in probes)
    assert 0.99 / count < part < 0.95
    before = len(stub.asked)
    assert settle(stub.session) and len(stub.asked) == before


def test_the_fastest_are_measured_again_alone(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=0.01)
    engine = at_once(stub, 2)
    search(stub.session)
    engine.most, before = 0, len(stub.asked)
    assert settle(stub.session)
    assert engine.most == 1 and len(stub.asked) >= before + 2


def test_a_listed_value_in_flight_is_not_asked_for_again(tmp_path, monkeypatch):
    lengths = {"max_length": [256, 512, 1024]}
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, recipe=lengths, budget={"probes": 3})
    at_once(stub, 3)
    search(stub.session)
    assert sorted(c["max_length"] for c in stub.asked) == [256, 512, 1024]


def test_what_a_result_rules_out_in_flight_is_stopped(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, answer=lambda c, n: bad("oom", missing_bytes=5))
    engine, flights = at_once(stub, 3), loop.flights_of(stub.session)
    small, large = (
        next(c for c in stub.session.space.candidates if c.micro_batch == rows) for rows in (2, 4)
    )
    for candidate, watched in ((small, True), (large, True), (large, False)):
        flights.begin(*stub.session.study.ask_for(candidate), watched=watched)
    assert flights.next_ending().outcome == "oom"
    flights.stop(loop.rule_out(stub.session, stub.records))
    assert list(engine.stopped) == ["0001"]  # not what is measured to its end


def test_a_run_that_goes_on_takes_up_what_is_in_flight(tmp_path, monkeypatch):
    stub = Stub(tmp_path, monkeypatch, epochs=1e6, budget={"probes": 4})
    at_once(stub, 2)
    loop.begin_next(stub.session, loop.flights_of(stub.session))  # and the process is killed
    assert search(stub.session) == "the budget of 4 probes is used"
    assert len(stub.asked) == len({c.key for c in stub.asked}) == 4
    assert all(record.measurement.outcome == "ok" for record in stub.records)
