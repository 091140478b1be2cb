"""Which engines are traced where there are many, and what formula and traces say of the others."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.plan.candidates import estimates_of, speed_of
from autotune.plan.engine_tasks import (
    TaskRecord,
    best_reply,
    first_of_kinds,
    nearest_traced,
    with_work_of,
)
from autotune.plan.engines import (
    MOST_SETTLED,
    EngineTraces,
    answered,
    bases,
    formula_replies,
)
from autotune.plan.trace_choice import (
    EVERY,
    FIRST,
    PROMISING,
    Effort,
    rank,
    representatives,
    to_trace,
)
from autotune.plan.variants import variant_tasks
from autotune.space.sharding.sharding import DATA_PARALLEL, Sharding
from tests.unit.builders import make_estimate, make_facts, make_job, make_space
from tests.unit.run.test_expectations import CEILINGS, ELEMENTWISE

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


COPIED = [ShapeWork(rows=1, length=8, masked=False, flat=False, work=[])]
OWN = [ShapeWork(rows=2, length=8, masked=False, flat=False, work=[])]


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
        found |= dict(formula_replies(one, answers, tasks()))
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
    found = dict(formula_replies(one, broken, tasks()))
    assert found.keys() == one.members.keys()
    assert all(told.problem == "it broke" for told in found.values())


def ranked(order, traced=()):
    """Records of all tasks, ranked in this order, the first the fastest; all may fit."""
    places = {number: place for place, number in enumerate(order)}
    return [
        TaskRecord(
            number=number,
            task=task,
            reply=reply([], by_formula=task.engine and number not in traced),
            rank=(False, places[number] - 1000.0) if number in places else (False, -1.0),
        )
        for number, task in enumerate(tasks())
    ]


def chosen(records, **arguments):
    return [record.number for record in to_trace(records, **arguments)]


def reranked(records, ranks):
    return [replace(r, rank=ranks.get(r.number, r.rank)) for r in records]


def offloads(number):
    return tasks()[number].request.parsed_sharding.offloads


ORDER = range(200)
"""Of tasks, by number; there are fewer."""


def test_what_offloads_is_traced_where_it_alone_fits():
    records = ranked(ORDER)
    none_fits = {n: (True, 1e9 if offloads(n) else 3e9) for n in range(len(tasks()))}
    assert all(offloads(n) for n in chosen(reranked(records, none_fits))[:FIRST])
    others = {n: (True, 9e9) for n in range(len(tasks())) if not offloads(n)}
    assert offloads(chosen(reranked(records, others))[0])


def strategies(numbers):
    return {repr(tasks()[n].request.sharding) for n in numbers}


def test_the_first_engines_are_traced_and_of_each_strategy_the_first():
    order = list(range(len(tasks())))[::-1]
    numbers = chosen(ranked(order))
    engines = {n for n in order if tasks()[n].engine and not offloads(n)}
    assert {n for n in order[:FIRST] if n in engines} <= set(numbers) <= engines
    assert strategies(numbers) == strategies(engines)  # what offloads is no faster, and left out
    assert len(numbers) <= FIRST + len(strategies(engines))
    # Once they are, and stay where they were, nothing is left to do.
    assert chosen(ranked(order, traced=numbers)) == []


def test_an_engine_that_cannot_be_traced_stays_by_formula_and_is_not_tried_again():
    records = ranked(ORDER)
    record = to_trace(records)[0]
    points = [POINT] * len(record.task.request.points)
    record.formula = replace(reply(points, by_formula=True), shapes=COPIED)
    broken = replace(reply([]), problem="it broke")
    record.receive(broken)
    assert record.reply == replace(record.formula, engine_problem="it broke")
    assert record not in to_trace(records)
    found = estimates_of([record.task], [record.reply], 2**36)
    for one in (member.candidate for member in record.task.members):
        assert found[one.key].method == "adjusted trace"
        assert "(it broke)" in "".join(found[one.key].notes)
    # Where nothing was known before, that is what it is.
    assert best_reply(broken, broken).problem == "it broke"
    assert best_reply(record.formula, reply(points)).copied_shapes == COPIED


def test_one_answer_takes_one_trace():
    order = [n for n, task in enumerate(tasks()) if task.engine]
    order += [n for n in range(len(tasks())) if n not in order]
    assert chosen(ranked(order), effort=Effort(first=1)) == order[:1]


def test_what_falls_behind_makes_room_for_the_next():
    first = chosen(ranked(ORDER))
    slower = dict.fromkeys(first, (True, 5.0 * MIB))  # they do not fit
    later = chosen(reranked(ranked(ORDER, traced=first), slower))
    assert later and not set(later) & set(first)


def with_size(size, sigma):
    fits = size < 2**36
    known = replace(POINT, sigma=sigma, oom=not fits, peak_reserved_bytes=size)
    known = replace(known, method="scaled trace" if sigma else "trace")
    return replace(known, missing_bytes=None if fits else 1, retries=0)


def estimates_within(limit, ceilings=None):
    return lambda task, reply: estimates_of([task], [reply], limit, ceilings=ceilings)


def settled(whole_bytes, stages=(3,)):
    """Answers where all engines were traced with few layers, settled; which tasks were whole."""
    engines = [task for task in tasks() if task.engine]
    few = [task for task in engines if task.request.sharding["zero_stage"] in stages][:3]
    few_bytes = POINT.peak_reserved_bytes
    asked = []

    def traced(some, name, hear):
        asked.extend(one.request for one in some if one.request.all_layers)
        sigma = 0.0 if some[0].request.all_layers else 0.07
        sizes = [whole_bytes + one.request.rank if sigma == 0 else few_bytes for one in some]
        replies = [
            reply([with_size(size, sigma)] * len(one.request.points))
            for size, one in zip(sizes, some, strict=True)
        ]
        for place, one in enumerate(replies if hear else ()):
            hear(place, one)
        return replies

    return answered(few, EVERY, estimates_within(2**36), traced, with_speeds=False), asked


def test_of_the_first_candidate_all_layers_are_traced():
    replies, asked = settled(whole_bytes=2 * POINT.peak_reserved_bytes)
    assert [len(one.points) for one in asked] == [1]
    sigmas = [point.sigma for one in replies for point in one.points]
    assert sorted(sigmas) == [0.0] + [0.07] * (len(sigmas) - 1)


def test_in_stages_1_and_2_the_first_and_the_last_process_are_traced_and_the_larger_counts():
    replies, asked = settled(POINT.peak_reserved_bytes, stages=(1, 2))
    last = asked[0].sharding["num_processes"] - 1
    assert [one.rank for one in asked] == [0, last]
    (point,) = (point for one in replies for point in one.points if point.sigma == 0)
    assert point.peak_reserved_bytes == POINT.peak_reserved_bytes + last


def test_a_candidate_that_does_not_fit_with_all_layers_makes_room_for_the_next():
    _, asked = settled(whole_bytes=2**37)
    assert len(asked) == MOST_SETTLED
    assert len({repr(one) for one in asked}) == MOST_SETTLED


def test_strategies_that_are_much_slower_are_left_to_the_formula():
    first = [n for n in range(len(tasks())) if not offloads(n)][:FIRST]
    slow = {n: (False, -100.0) for n in range(len(tasks())) if n not in first}
    assert set(chosen(reranked(ranked(ORDER), slow))) <= set(first)


def test_what_is_much_slower_than_what_was_traced_is_left_to_the_formula():
    order = [n for n in range(len(tasks())) if not offloads(n) and tasks()[n].engine]
    records = ranked(order, traced=order[:1])
    assert order[1] in chosen(reranked(records, {order[0]: (False, -1001.0)}))
    assert order[1] not in chosen(reranked(records, {order[0]: (False, -2000.0)}))


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


# -- what a traced engine says of similar ones


def records_of(*traced):
    """Records of all tasks by formula, but for those numbers, which were traced."""
    programs = {n: place for place, base in enumerate(bases(tasks())) for n in base.members}
    records = []
    for number, task in enumerate(tasks()):
        formula = replace(reply([POINT] * len(task.request.points), by_formula=True), shapes=COPIED)
        record = TaskRecord(
            number=number, task=task, reply=formula, formula=formula, program=programs[number]
        )
        if number in traced:
            record.reply = replace(formula, by_formula=False, shapes=OWN)
        records.append(record)
    return records


def two_of_a_kind():
    records = [record for record in records_of() if record.task.engine]
    first = next(r for r in records if r.sharding.zero_stage == 1)
    return first.number, next(r.number for r in records if r.kind == first.kind and r is not first)


def test_kinds_are_the_ways_through_the_program_with_one_library():
    records = [record for record in records_of() if record.task.engine]
    for record in records:
        same = [other for other in records if other.kind == record.kind]
        assert len({other.sharding.distributed_type for other in same}) == 1
        assert {other.task.traced.key for other in same} == {record.task.traced.key}


def test_what_was_traced_gives_its_work_to_similar_ones_and_the_shape_of_their_curves_stays():
    first, second = two_of_a_kind()
    records = records_of(first)
    traced = replace(records[first].reply, optimizer_work={"": []})
    known = with_work_of(records[second].reply, traced)
    assert (known.by_formula, known.shapes, known.copied_shapes) == (True, OWN, COPIED)
    assert known.optimizer_work == {"": []}
    untraced = replace(records[second].reply, engine_problem="it broke")
    known = with_work_of(untraced, traced)
    assert (known.engine_problem, known.shapes) == ("it broke", OWN)
    assert with_work_of(known, traced).copied_shapes == COPIED


def test_the_nearest_is_of_the_same_library_and_stage_where_one_was_traced():
    program = records_of()[two_of_a_kind()[0]].program

    def some(library, stage):
        return next(
            r.number
            for r in records_of()
            if r.kind == (program, library) and r.sharding.zero_stage == stage
        )

    def nearest(records):
        found = ((r.number, nearest_traced(r, records)) for r in records)
        return {number: one.number for number, one in found if one is not None}

    fsdp, second, third = some("FSDP", 0), some("DEEPSPEED", 2), some("DEEPSPEED", 3)
    records = records_of(fsdp, second)
    known = nearest(records)
    assert known[third] == second
    assert {records[n].program for n in known} == {program}
    assert not {fsdp, second} & set(known)
    assert all(records[m].kind == records[n].kind for n, m in known.items())
    assert nearest(records_of(fsdp))[third] == fsdp


def test_memory_is_expected_as_far_from_the_formula_as_it_was_there():
    first, second = two_of_a_kind()
    larger = replace(POINT, peak_reserved_bytes=POINT.peak_reserved_bytes + MIB, oom=False)
    too_large = replace(larger, at_least=True)
    for answer, excess in ((larger, MIB), (too_large, 0)):
        records = records_of(first)
        traced = records[first].reply
        records[first].reply = replace(traced, points=[answer] * len(traced.points))
        records[second].nearest = records[first]
        asked = [records[n].task.request.points for n in (first, second)]
        shared = [point in asked[0] for point in asked[1]]
        assert any(shared)
        peaks = [point.peak_reserved_bytes for point in records[second].expected().points]
        assert peaks == [POINT.peak_reserved_bytes + excess * known for known in shared]


def test_of_a_kind_one_is_traced_before_the_others():
    first, second = two_of_a_kind()
    records = records_of()
    other = next(r for r in records if r.task.engine and r.kind != records[first].kind)
    assert first_of_kinds([records[second], records[first], other]) == [records[second], other]


def test_the_curves_of_what_is_traced_later_are_those_of_copies_still():
    def trace(some, name, hear):
        shapes = COPIED if name == "copies" else OWN
        for place, task in enumerate(some):
            hear(place, replace(reply([POINT] * len(task.request.points)), shapes=shapes))

    traces = EngineTraces(tasks(), Effort(first=None), estimates_within(1), trace)
    traces.trace_without_engines()
    first, second = (traces.records[number] for number in two_of_a_kind())
    traces.trace([first])
    second.reply = with_work_of(second.reply, first.reply)
    traces.trace([second])
    for record in (first, second):
        assert (record.reply.shapes, record.reply.copied_shapes) == (OWN, COPIED)


def test_what_computes_the_same_has_its_speeds_worked_out_once():
    known = {}
    first = replace(records_of()[0].reply, optimizer_work={"": []})
    speed = speed_of("sft", first, CEILINGS, known)
    assert speed_of("sft", replace(first, points=[]), CEILINGS, known) is speed
    assert speed_of("sft", replace(first, shapes=list(COPIED)), CEILINGS, known) is not speed
    assert speed_of("sft", first, None, known) is None
    assert speed_of("sft", replace(first, problem="it broke"), CEILINGS, known) is None


@pytest.mark.parametrize("fails", [("copies",), ("engines",), ("copies", "engines")])
def test_a_way_that_cannot_be_traced_ends_no_plan(fails: tuple[str, ...]) -> None:
    way = [tasks()[number] for number in bases(tasks())[0].members]
    known = {}

    def trace(some, name, hear):
        shape = ShapeWork(rows=1, length=100, masked=False, flat=False, work=[ELEMENTWISE])
        works = {"shapes": [shape], "optimizer_work": {"": [ELEMENTWISE]}}
        for place, task in enumerate(some):
            answer = replace(reply([POINT] * len(task.request.points)), **works)
            if ("copies" if name == "copies" else "engines") in fails:
                answer = replace(reply([]), problem="it broke")
            hear(place, answer)

    estimates = estimates_within(2**36, CEILINGS)
    traces = EngineTraces(way, PROMISING, estimates, trace, known.update)
    traces.trace_without_engines()
    traces.trace_first()
    problems = [answer.problem or answer.engine_problem for answer in known.values()]
    assert len(problems) == len(way) and "it broke" in problems
