"""What earlier runs measured, in a file that may be missing, foreign or read-only."""

import math
import sqlite3
from dataclasses import replace

import pytest

from autotune.estimate.residual import Residual
from autotune.plan.cache import PlanCache
from autotune.probe.outcome import disturbed
from autotune.run.expectations import Expectations
from autotune.run.history import CHANGED, OTHER_KNOBS, SAME, History
from autotune.search.record import Record
from tests.unit.builders import bad, make_estimate, make_facts, make_job, make_space, ok
from tests.unit.estimate.speed.test_ceilings import make_ceilings

JOB, FACTS = make_job(global_batch_size=4), make_facts()
SPACE = make_space(JOB, FACTS)
FIRST = SPACE.candidates[0]
EXPECTATIONS = Expectations(
    estimates={one.key: make_estimate(1000, tokens_per_s=200.0) for one in SPACE.candidates},
    prior=Residual(),
    limit_bytes=10**9,
)


def records(*measurements):
    return [
        Record(number=n, candidate=SPACE.candidates[n], measurement=one)
        for n, one in enumerate(measurements)
    ]


@pytest.fixture
def history(nasty_dir, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_CACHE", str(nasty_dir / "cache"))
    PlanCache.of_user().keep_ceilings(FACTS.device.name, make_ceilings())
    return History(path=nasty_dir / "new" / "history.db")


def test_where_the_rates_of_the_device_were_not_kept_there_is_no_history(history, monkeypatch):
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    assert history.readings(JOB, FACTS, SPACE)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(history.path.parent / "other cache"))
    assert history.readings(JOB, FACTS, SPACE) == []
    history.keep("b", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    PlanCache.of_user().keep_ceilings(FACTS.device.name, make_ceilings(overhead_s_per_operator=1.0))
    assert [one.sd for one in history.readings(JOB, FACTS, SPACE)] == [CHANGED]


@pytest.mark.usefixtures("quiet_counts")
def test_a_disturbed_probe_is_not_kept(history):
    busy = disturbed(replace(ok(100.0), processor_wait_share=0.3))
    history.keep("a", JOB, FACTS, records(busy, ok(50.0)), EXPECTATIONS)
    (one,) = history.readings(JOB, FACTS, SPACE)
    assert math.exp(one.log_speed) == pytest.approx(50)


def test_a_file_that_is_no_database_is_begun_anew(history):
    history.path.parent.mkdir(parents=True)
    history.path.write_bytes(b"no database " * 1000)
    assert history.readings(JOB, FACTS, SPACE) == []
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    assert len(history.readings(JOB, FACTS, SPACE)) == 1


def test_what_a_run_measured_is_read_by_the_next(history):
    history.keep("a", JOB, FACTS, records(ok(100.0), bad("oom"), ok(300.0), None), EXPECTATIONS)
    readings = history.readings(JOB, FACTS, SPACE)
    assert sorted(round(math.exp(one.log_speed)) for one in readings) == [100, 300]
    assert {one.expected.speed for one in readings} == {200.0}
    assert {one.sd for one in readings} == {SAME}
    by_speed = min(readings, key=lambda one: one.log_speed)
    assert by_speed.params["optim"] == FIRST["optim"]


def test_a_run_that_goes_on_is_not_counted_twice(history):
    for _ in range(2):
        history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    assert len(history.readings(JOB, FACTS, SPACE)) == 1
    history.keep("b", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    assert len(history.readings(JOB, FACTS, SPACE)) == 2


def test_another_version_or_driver_devalues(history):
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    newer = replace(FACTS, stack=replace(FACTS.stack, versions={"torch": "99"}))
    driver = replace(FACTS, device=replace(FACTS.device, driver="999.1"))
    for facts in (newer, driver):
        assert [one.sd for one in history.readings(JOB, facts, SPACE)] == [CHANGED]


def test_knobs_that_do_not_vary_now_and_were_others_then_devalue_too(history):
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    pinned = make_job(global_batch_size=4, max_length=512)
    readings = history.readings(pinned, FACTS, make_space(pinned, FACTS))
    assert [one.sd for one in readings] == [OTHER_KNOBS]


def test_another_model_method_or_device_is_another_subject(history):
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    model = replace(FACTS, model=replace(FACTS.model, layers=3))
    device = replace(FACTS, device=replace(FACTS.device, name="another"))
    for facts in (model, device):
        assert history.readings(JOB, facts, SPACE) == []
    assert history.readings(make_job(tuning="lora"), FACTS, SPACE) == []


def test_the_newest_rows_count(history):
    for number in range(70):
        history.keep(f"run {number}", JOB, FACTS, records(ok(100.0 + number)), EXPECTATIONS)
    speeds = [round(math.exp(one.log_speed)) for one in history.readings(JOB, FACTS, SPACE)]
    assert len(speeds) == 60
    assert (max(speeds), min(speeds)) == (169, 110)


def test_without_a_file_or_where_there_can_be_none_there_is_no_history(history, tmp_path):
    assert history.readings(JOB, FACTS, SPACE) == []
    other = History(path=tmp_path)
    other.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    assert other.readings(JOB, FACTS, SPACE) == []


def test_a_row_that_makes_no_sense_is_no_history(history):
    history.keep("a", JOB, FACTS, records(ok(100.0)), EXPECTATIONS)
    with sqlite3.connect(history.path) as database:
        database.execute("UPDATE probes SET knobs = '{', measured = 'x'")
    assert history.readings(JOB, FACTS, SPACE) == []


def test_a_candidate_without_an_estimate_is_not_kept(history):
    empty = replace(EXPECTATIONS, estimates={})
    history.keep("a", JOB, FACTS, records(ok(100.0)), empty)
    assert history.readings(JOB, FACTS, SPACE) == []
