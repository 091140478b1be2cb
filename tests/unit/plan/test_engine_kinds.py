"""What a traced engine says of others of its kind."""

from dataclasses import replace

import pytest

from autotune.estimate.protocol import ShapeWork
from autotune.plan.engine_kinds import expectation, kinds_of, likes_of, with_work_of
from autotune.plan.engines import EngineEstimates, TraceBudget
from autotune.plan.known import Known
from autotune.plan.shared_traces import bases
from autotune.plan.speeds import Speeds
from autotune.plan.trace_choice import first_of_kinds, to_trace
from tests.unit.plan.test_engines import MIB, POINT, offloads, ranked, reply, tasks
from tests.unit.run.test_expectations import CEILINGS, ELEMENTWISE

COPIED = [ShapeWork(rows=1, length=8, masked=False, flat=False, work=[])]
OWN = [ShapeWork(rows=2, length=8, masked=False, flat=False, work=[])]


def two_of_a_kind():
    kinds = kinds_of(tasks(), bases(tasks()))
    first = next(n for n in kinds if tasks()[n].request.parsed_sharding.zero_stage == 1)
    return first, next(n for n, kind in kinds.items() if kind == kinds[first] and n != first)


def replies_of(number, *, by_formula):
    points = [POINT] * len(tasks()[number].request.points)
    return replace(reply(points, by_formula=by_formula), shapes=COPIED if by_formula else OWN)


def test_kinds_are_the_ways_through_the_program_with_one_library():
    kinds = kinds_of(tasks(), bases(tasks()))
    assert set(kinds) == {n for n, task in enumerate(tasks()) if task.engine}
    for number, kind in kinds.items():
        alike = [tasks()[n] for n, other in kinds.items() if other == kind]
        assert len({task.request.parsed_sharding.distributed_type for task in alike}) == 1
        assert {task.traced.key for task in alike} == {tasks()[number].traced.key}


def test_what_was_traced_gives_its_work_to_its_like_and_the_shape_of_its_curves_stays():
    first, second = two_of_a_kind()
    traced = replace(replies_of(first, by_formula=False), optimizer_work={"": []})
    known = with_work_of(replies_of(second, by_formula=True), traced)
    assert (known.by_formula, known.shapes, known.copied_shapes) == (True, OWN, COPIED)
    assert known.optimizer_work == {"": []}


def test_what_could_not_be_traced_stays_so_with_the_work_of_its_like():
    first, second = two_of_a_kind()
    untraced = replace(replies_of(second, by_formula=True), engine_problem="it broke")
    known = with_work_of(untraced, replies_of(first, by_formula=False))
    assert (known.engine_problem, known.shapes) == ("it broke", OWN)
    assert with_work_of(known, replies_of(first, by_formula=False)).copied_shapes == COPIED


def test_the_like_is_of_the_same_library_and_stage_where_one_was_traced():
    kinds = kinds_of(tasks(), bases(tasks()))
    shardings = {n: tasks()[n].request.parsed_sharding for n in kinds}
    way = kinds[two_of_a_kind()[0]][0]

    def some(library, stage):
        return next(
            n
            for n, (place, name) in kinds.items()
            if (place, name) == (way, library) and shardings[n].zero_stage == stage
        )

    fsdp, second, third = some("FSDP", 0), some("DEEPSPEED", 2), some("DEEPSPEED", 3)
    replies = {n: replies_of(n, by_formula=n not in (fsdp, second)) for n in kinds}
    likes = likes_of(tasks(), kinds, replies)
    assert likes[third] == second
    assert {kinds[n][0] for n in likes} == {way}
    assert not {fsdp, second} & set(likes)
    assert all(kinds[m][1] == kinds[n][1] for n, m in likes.items())
    replies[second] = replies_of(second, by_formula=True)
    assert likes_of(tasks(), kinds, replies)[third] == fsdp


def test_memory_is_expected_as_far_from_the_formula_as_it_was_there():
    first, second = two_of_a_kind()
    formulas = {n: replies_of(n, by_formula=True) for n in (first, second)}
    traced = replies_of(first, by_formula=False)
    larger = replace(POINT, peak_reserved_bytes=POINT.peak_reserved_bytes + MIB, oom=False)
    too_large = replace(larger, at_least=True)
    for answer, beyond in ((larger, MIB), (too_large, 0)):
        found = replace(traced, points=[answer] * len(traced.points))
        reply_expected = expectation(second, first, tasks(), formulas, found)
        shared = [
            point in tasks()[first].request.points for point in tasks()[second].request.points
        ]
        assert any(shared)
        peaks = [point.peak_reserved_bytes for point in reply_expected.points]
        assert peaks == [POINT.peak_reserved_bytes + beyond * known for known in shared]


def test_of_a_kind_one_is_traced_before_the_others():
    kinds = {1: "a", 2: "a", 3: "b", 4: "a"}
    assert first_of_kinds([2, 1, 3, 4], kinds) == [2, 3]


def test_what_is_much_slower_than_what_was_traced_is_left_to_the_formula():
    order = [n for n in range(len(tasks())) if not offloads(n) and tasks()[n].engine]
    replies, ranks = ranked(order, traced=order[:1])
    near, far = {**ranks, order[0]: (False, -1001.0)}, {**ranks, order[0]: (False, -2000.0)}
    others = range(len(tasks()))
    slow = {n: (False, -1.0) for n in others if n not in ranks}
    assert order[1] in to_trace(tasks(), replies, near | slow)
    assert order[1] not in to_trace(tasks(), replies, far | slow)


def test_the_curves_of_what_is_traced_later_are_those_of_copies_still():
    known = Known()

    def children(some, name, heard):
        shapes = COPIED if name == "copies" else OWN
        replies = [
            replace(reply([POINT] * len(task.request.points)), shapes=shapes) for task in some
        ]
        for place, answer in enumerate(replies):
            heard(place, answer)
        return replies

    estimates = EngineEstimates(tasks(), TraceBudget(limit=1, ceilings=None), children, known)
    estimates.adjust()
    first, second = two_of_a_kind()
    estimates.trace([first])
    known.add({second: with_work_of(known.replies[second], known.replies[first])})
    estimates.trace([second])
    for number in (first, second):
        assert (known.replies[number].shapes, known.replies[number].copied_shapes) == (OWN, COPIED)


def test_what_computes_the_same_has_its_speeds_worked_out_once():
    speeds, ceilings = Speeds(), CEILINGS
    first = replace(replies_of(0, by_formula=True), shapes=COPIED, optimizer_work={"": []})
    second = replace(first, points=[])
    other = replace(first, shapes=list(COPIED))
    known = speeds.of("sft", first, ceilings)
    assert speeds.of("sft", second, ceilings) is known
    assert speeds.of("sft", other, ceilings) is not known
    assert speeds.of("sft", first, None) is None
    assert speeds.of("sft", replace(first, problem="it broke"), ceilings) is None


@pytest.mark.parametrize("fails", [("copies",), ("engines",), ("copies", "engines")])
def test_a_way_that_cannot_be_traced_ends_no_plan(fails: tuple[str, ...]) -> None:
    way = [tasks()[number] for number in bases(tasks())[0].members]

    def children(some, name, heard):
        fails_here = ("copies" if name == "copies" else "engines") in fails
        shape = ShapeWork(rows=1, length=100, masked=False, flat=False, work=[ELEMENTWISE])
        works = {"shapes": [shape], "optimizer_work": {"": [ELEMENTWISE]}}
        replies = [replace(reply([POINT] * len(task.request.points)), **works) for task in some]
        if fails_here:
            replies = [replace(reply([]), problem="it broke") for _ in some]
        for place, answer in enumerate(replies):
            heard(place, answer)
        return replies

    known = Known()
    estimates = EngineEstimates(way, TraceBudget(limit=2**36, ceilings=CEILINGS), children, known)
    estimates.adjust()
    estimates.trace_first()
    problems = [answer.problem or answer.engine_problem for answer in known.replies.values()]
    assert len(problems) == len(way) and "it broke" in problems
