"""How many of the devices train: what may be asked for, and what follows from it."""

import dataclasses

import pytest

from autotune.errors import UserError
from autotune.facts.device_kinds import facts_of, find_kind
from autotune.plan.questions.changes import more_devices
from autotune.probe.measure import probe_request
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_shape import rows_of_step
from autotune.space.sharding.sharding import sharding_of
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job


def space(**fields):
    job = make_job(**fields)
    return job, bind(load_definition(job.method), job, make_facts())


def problem(**fields):
    with pytest.raises(UserError) as caught:
        space(**fields)
    (problem,) = caught.value.problems
    return problem.where, problem.what, problem.hint


def test_by_default_every_device_trains():
    job, bound_space = space(devices={"count": 4})
    assert {candidate["num_processes"] for candidate in bound_space.candidates} == {4}
    assert {rows_of_step(candidate, job.devices.total) for candidate in bound_space.candidates} == {
        16
    }


def test_fewer_train_where_that_is_asked_for_and_the_batch_stays():
    job, bound_space = space(devices={"count": 8}, recipe={"num_processes": [8, 2, 1]})
    assert {candidate["num_processes"] for candidate in bound_space.candidates} == {8, 2, 1}
    assert {rows_of_step(candidate, job.devices.total) for candidate in bound_space.candidates} == {
        16
    }
    assert {
        candidate.micro_batch
        for candidate in bound_space.candidates
        if candidate["num_processes"] == 8
    } == {1, 2}
    for candidate in bound_space.candidates:
        single = candidate["num_processes"] == 1
        sharding = sharding_of(candidate.values, 8)
        assert (candidate["distributed_type"] == "NO") == (single and not sharding.offloads)
        assert sharding_of(candidate.values, 8).num_processes == candidate["num_processes"]


def test_rows_that_devices_cannot_share_name_batches_and_numbers_that_can():
    where, what, hint = problem(devices={"count": 7})
    assert (where, what) == ("global_batch_size", "16 rows cannot be divided among 7 devices")
    assert hint.startswith("the nearest batches that can are 14 or 21")
    assert hint.endswith("train on other numbers: `fixed: {num_processes: 4}`")
    _, bound_space = space(devices={"count": 7}, fixed={"num_processes": 4})
    assert bound_space.candidates


@pytest.mark.parametrize("count_asked_for", [{"fixed": {"num_processes": 4}}])
@pytest.mark.parametrize("count", [1, 2])
def test_no_more_processes_than_devices(count_asked_for, count):
    where, what, hint = problem(devices={"count": count}, **count_asked_for)
    assert where == "num_processes"
    assert what.startswith(f"4 processes on {count} device(s)")
    assert hint == f"at most {count}, or raise devices.count"


def test_the_devices_that_train_are_the_first_ones(tmp_path):
    job, bound_space = space(devices={"count": 8}, recipe={"num_processes": [8, 2]})
    facts = make_facts()
    device = dataclasses.replace(facts_of(find_kind("h100"), 16), index=1, peers=tuple(range(2, 9)))
    facts = dataclasses.replace(facts, device=device)
    for candidate in (bound_space.candidates[0], bound_space.candidates[-1]):
        count = candidate["num_processes"]
        gpus = settings(job, facts, candidate, "out").environment["CUDA_VISIBLE_DEVICES"].split(",")
        assert gpus == [str(1 + n) for n in range(count)]
        request = probe_request(settings(job, facts, candidate), rows=tmp_path, limit=None)
        assert (request.parsed_sharding.num_processes, request.global_batch) == (count, 16)


def test_another_device_is_no_way_out_where_the_number_is_pinned():
    job = make_job(method="grpo", devices={"count": 2}, global_batch_size=16)
    assert list(more_devices(job))
    assert not list(more_devices(job.model_copy(update={"fixed": {"num_processes": 2}})))
