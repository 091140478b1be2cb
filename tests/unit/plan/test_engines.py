"""Which engines are traced where there are many, and what the formula says of the others."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.plan import engines as answering
from autotune.plan.candidates import estimates_of
from autotune.plan.engines import MOST_SETTLED, TraceBudget, answered, traced_or_not
from autotune.plan.progress import Progress
from autotune.plan.shared_traces import bases, shared_out
from autotune.plan.trace_choice import EVERY, FIRST, Effort, rank, representatives, to_trace
from autotune.plan.variants import variant_tasks
from autotune.process.server import ChildServer
from autotune.space.sharding.sharding import DATA_PARALLEL, Sharding
from tests.unit.builders import make_estimate, make_facts, make_job, make_space

MIB = 2**20
JOB = make_job(devices={"count": 8}, global_batch_size=64, fixed={"attn_implementation": "sdpa"})
FACTS = make_facts("cuda")
POINT = PointReply(
    peak_allocated_bytes=2200 * MIB,
    peak_reserved_bytes=2420 * MIB,
    parts={
        "weights": 400 * MIB,
        "gradients": 400 * MIB,
        "optimizer": 800 * MIB,
        "communication": 400 * MIB,
        "activations": 200 * MIB,
    },
    operator="mm",
    phase="micro-step",
    oom=True,
    missing_bytes=1,
    retries=2,
    phases={"micro-step": 2200 * MIB, "step": 2100 * MIB},
    sample=[(100, 100, 1)],
    masked=False,
    method="trace",
)


@cache
def tasks():
    space = make_space(JOB, FACTS)
    return variant_tasks(
        [space.settings(one) for one in space.candidates],
        rows=Path("rows"),
        limit=2**36,
        cache=None,
    )


SHAPES = [ShapeWork(rows=1, length=8, masked=False, flat=False, work=[])]


def reply(points, *, by_formula=False):
    return EstimateReply(
        points=points,
        shapes=[],
        optimizer_work={},
        process_bytes=1,
        by_formula=by_formula,
    )


def test_every_task_follows_from_one_of_few_traces_without_an_engine():
    shared = bases(tasks())
    assert len(shared) < len(tasks()) / 8
    assert sorted(n for one in shared for n in one.members) == list(range(len(tasks())))
    for one in shared:
        assert not one.task.engine
        assert one.task.request.sharding["distributed_type"] in DATA_PARALLEL
        assert one.task.request.deepspeed is None
        for number, places in one.members.items():
            asked = [one.task.request.points[place] for place in places]
            assert asked == tasks()[number].request.points
        keys = [m.candidate.key for n in one.members for m in tasks()[n].members]
        assert [m.candidate.key for m in one.task.members] == keys


def test_copies_get_what_was_traced_and_engines_less():
    found = {}
    for one in bases(tasks()):
        answers = reply([POINT] * len(one.task.request.points))
        found |= dict(shared_out(one, answers, tasks()))
    for number, task in enumerate(tasks()):
        assert found[number].by_formula is task.engine
        for answer in found[number].points:
            if not task.engine:
                assert answer == POINT
                continue
            assert (answer.oom, answer.retries) == (False, 0)
            assert answer.peak_allocated_bytes < POINT.peak_allocated_bytes
            held = answer.peak_reserved_bytes / answer.peak_allocated_bytes
            assert held == pytest.approx(1.1)  # as much more as there
            spread = Sharding(**task.request.sharding)
            assert answer.parts.get("optimizer", 0) < POINT.parts["optimizer"]
            if spread.zero_stage == 3 and not spread.offloads:
                assert answer.parts["weights"] < POINT.parts["weights"] / 4
            assert ("weights" in answer.parts) is (spread.offload_param_device == "none")


def test_a_path_that_cannot_be_traced_says_so_for_all_that_follow_from_it():
    one = bases(tasks())[0]
    broken = replace(reply([]), problem="it broke")
    found = dict(shared_out(one, broken, tasks()))
    assert found.keys() == one.members.keys()
    assert all(told.problem == "it broke" for told in found.values())


def ranked(order, traced=()):
    """Replies and ranks of tasks in this order, the first the fastest; all may fit."""
    engines = [task.engine and n not in traced for n, task in enumerate(tasks())]
    replies = {n: reply([], by_formula=one) for n, one in enumerate(engines)}
    speeds = {number: 1000.0 - place for place, number in enumerate(order)}
    return replies, {number: (False, -speed) for number, speed in speeds.items()}


def offloads(number):
    return tasks()[number].request.parsed_sharding.offloads


def test_what_offloads_is_traced_where_it_alone_fits():
    order = list(range(len(tasks())))
    replies, ranks = ranked(order)
    none_fits = {n: (True, 3e9 if not offloads(n) else 1e9) for n in order}
    assert all(offloads(n) for n in to_trace(tasks(), replies, none_fits)[:FIRST])
    alone = {n: rank if offloads(n) else (True, 9e9) for n, rank in ranks.items()}
    assert offloads(to_trace(tasks(), replies, alone)[0])


def strategies(numbers):
    return {repr(tasks()[n].request.sharding) for n in numbers}


def test_the_first_engines_are_traced_and_of_each_strategy_the_first():
    order = list(range(len(tasks())))[::-1]
    replies, ranks = ranked(order)
    chosen = to_trace(tasks(), replies, ranks)
    engines = {n for n in order if tasks()[n].engine and not offloads(n)}
    assert {n for n in order[:FIRST] if n in engines} <= set(chosen) <= engines
    assert strategies(chosen) == strategies(engines)  # what offloads is no faster, and left out
    assert len(chosen) <= FIRST + len(strategies(engines))
    # Once they are, and stay where they were, nothing is left to do.
    replies, ranks = ranked(order, traced=chosen)
    assert to_trace(tasks(), replies, ranks) == []


def test_an_engine_that_cannot_be_traced_stays_by_formula_and_is_not_tried_again():
    order = list(range(len(tasks())))
    replies, ranks = ranked(order)
    number = to_trace(tasks(), replies, ranks)[0]
    points = [POINT] * len(tasks()[number].request.points)
    formula = replace(reply(points, by_formula=True), shapes=SHAPES)
    broken = replace(reply([]), problem="it broke")
    replies[number] = traced_or_not(formula, broken)
    assert replies[number] == replace(formula, engine_problem="it broke")
    assert number not in to_trace(tasks(), replies, ranks)
    found = estimates_of([tasks()[number]], [replies[number]], 2**36)
    for one in (member.candidate for member in tasks()[number].members):
        assert found[one.key].method == "adjusted trace"
        assert "(it broke)" in "".join(found[one.key].notes)
    # Where nothing was known before, that is what it is.
    assert traced_or_not(broken, broken).problem == "it broke"
    assert traced_or_not(formula, reply(points)).copied_shapes == SHAPES


def test_one_answer_takes_one_trace():
    order = [n for n, task in enumerate(tasks()) if task.engine]
    order += [n for n in range(len(tasks())) if n not in order]
    assert to_trace(tasks(), *ranked(order), effort=Effort(first=1)) == order[:1]


def test_what_falls_behind_makes_room_for_the_next():
    order = list(range(len(tasks())))
    first = to_trace(tasks(), *ranked(order))
    replies, ranks = ranked(order, traced=first)
    slower = dict.fromkeys(first, (True, 5.0 * MIB))  # they do not fit
    later = to_trace(tasks(), replies, ranks | slower)
    assert later and not set(later) & set(first)


def with_size(size, sigma):
    fits = size < 2**36
    known = replace(POINT, sigma=sigma, oom=not fits, peak_reserved_bytes=size)
    known = replace(known, method="scaled trace" if sigma else "trace")
    return replace(known, missing_bytes=None if fits else 1, retries=0)


def settled(monkeypatch, whole_bytes, stages=(3,)):
    """Answers where all engines were traced with few layers, settled; which tasks were whole."""
    engines = [task for task in tasks() if task.engine]
    few = [task for task in engines if task.request.sharding["zero_stage"] in stages][:3]
    few_bytes = POINT.peak_reserved_bytes
    asked = []

    def traced(some, servers, folder, progress, heard):
        asked.extend(one.request for one in some if one.request.all_layers)
        sigma = 0.0 if some[0].request.all_layers else 0.07
        sizes = [whole_bytes + one.request.rank if sigma == 0 else few_bytes for one in some]
        replies = [
            reply([with_size(size, sigma)] * len(one.request.points))
            for size, one in zip(sizes, some, strict=True)
        ]
        for place, one in enumerate(replies):
            heard(place, one)
        return replies

    monkeypatch.setattr(answering, "traced_in_children", traced)
    wanted = TraceBudget(limit=2**36, ceilings=None, effort=EVERY)
    return answered(few, wanted, ChildServer(Path("nowhere")), Path("nowhere"), Progress()), asked


def test_of_the_first_candidate_all_layers_are_traced(monkeypatch):
    replies, asked = settled(monkeypatch, whole_bytes=2 * POINT.peak_reserved_bytes)
    assert [len(one.points) for one in asked] == [1]
    sigmas = [point.sigma for one in replies for point in one.points]
    assert sorted(sigmas) == [0.0] + [0.07] * (len(sigmas) - 1)


def test_in_stages_1_and_2_the_first_and_the_last_process_are_traced_and_the_larger_counts(
    monkeypatch,
):
    replies, asked = settled(monkeypatch, POINT.peak_reserved_bytes, stages=(1, 2))
    last = asked[0].sharding["num_processes"] - 1
    assert [one.rank for one in asked] == [0, last]
    (point,) = (point for one in replies for point in one.points if point.sigma == 0)
    assert point.peak_reserved_bytes == POINT.peak_reserved_bytes + last


def test_a_candidate_that_does_not_fit_with_all_layers_makes_room_for_the_next(monkeypatch):
    _, asked = settled(monkeypatch, whole_bytes=2**37)
    assert len(asked) == MOST_SETTLED
    assert len({repr(one) for one in asked}) == MOST_SETTLED


def test_strategies_that_are_much_slower_are_left_to_the_formula():
    order = list(range(len(tasks())))
    replies, ranks = ranked(order)
    first = [number for number in order if not offloads(number)][:FIRST]
    slow = {number: (False, -100.0) for number in order if number not in first}
    assert set(to_trace(tasks(), replies, ranks | slow)) <= set(first)


def test_what_adjusts_a_trace_is_ranked_beside_the_trace():
    """Candidates that offload activations share the points of those that do not."""
    for task in tasks():
        few = representatives(task)
        kinds = {(member.place, member.replaced) for member in task.members}
        assert {(member.place, member.replaced) for member in few.members} == kinds
        assert len(few.members) == len(kinds)
        assert set(map(id, few.members)) <= set(map(id, task.members))
    assert any(len({member.replaced for member in task.members}) > 1 for task in tasks())


def test_of_what_was_traced_it_counts_whether_it_fits():
    likely = replace(make_estimate(MIB, 100.0), p_oom=0.9, fits=False)
    # An upper bound does not say that a candidate cannot fit; among the first it would be in the
    # way of those that do.
    for one in (likely, replace(likely, p_oom=1.0, at_most=True, method="adjusted trace")):
        assert rank(one, by_formula=True) == (False, -100.0)
        assert rank(one, by_formula=False) == (True, float(one.peak_memory_bytes))
    assert rank(replace(likely, p_oom=1.0), by_formula=True)[0]
    assert rank(replace(likely, p_host_oom=1.0), by_formula=True)[0]
