"""A few steps of a toy program, scaled to any micro-batch, chunk count and depth."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotune.estimate.allocator.replay import replayed
from autotune.estimate.records.events import ALLOCATE, FREE, PHASE, live_bytes
from autotune.estimate.records.layers import CHUNKS, LAYERS
from autotune.estimate.records.shapes import (
    Irregular,
    Shape,
    ShapeFamily,
    divide,
    whole_record,
    with_optimizer_step,
    without_accumulation,
)
from tests.unit.toy_program import Toy, canonical, curve

FEW = LAYERS.smallest
SIZES = st.integers(1, 40)
PROGRAMS = st.fixed_dictionaries(
    {
        "accumulation": st.integers(1, 2),
        "special_ends": st.booleans(),
        "recomputes": st.booleans(),
        "between": st.booleans(),
        "passing": st.sampled_from([(), (4096,), (100, 7)]),
    }
)

PASSING = st.lists(st.integers(1, 9000), max_size=3).map(tuple)


def steps_of(sizes, *, layers=FEW, **program):
    """The toy's steps after a first one of size 3."""
    return divide(Toy(layers=layers, **program).record([3, *sizes]))


def template_of(sizes, **program):
    toy = Toy(layers=FEW, **program)
    return ShapeFamily(
        shapes=tuple(
            Shape(size=size, chunks=toy.chunks(size), events=step, work=[])
            for size, step in zip(sizes, steps_of(sizes, **program).steps, strict=True)
        )
    )


# -- cutting a trace into steps


@settings(deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4), PROGRAMS)
def test_every_step_is_as_if_it_had_been_the_only_one(sizes, program):
    divided = steps_of(sizes, **program)
    singles = [steps_of([size], **program) for size in sizes]
    assert [canonical(step) for step in divided.steps] == [
        canonical(single.steps[0]) for single in singles
    ]
    assert len({tuple(single.opening) for single in singles}) == 1


@settings(deadline=None)
@given(SIZES, PROGRAMS)
def test_opening_and_step_together_have_the_peaks_of_the_run(size, program):
    divided = steps_of([size], **program)
    direct = live_bytes(Toy(layers=FEW, **program).record([3, size]))
    combined = live_bytes([*divided.opening, *divided.steps[0]])
    assert (combined.peak_bytes, combined.parts) == (direct.peak_bytes, direct.parts)
    for phase in ("micro-step", "clip", "step"):
        assert combined.phases[phase] == direct.phases[phase]


@given(SIZES)
def test_what_the_first_step_leaves_behind_is_gone_before_the_next(size):
    divided = steps_of([size])
    live = curve(divided.opening)[-1]
    weights_and_states = curve(Toy(layers=FEW).record([]))[-1] + FEW * 2 * 4096
    assert live == weights_and_states


def test_rows_that_collating_drops_do_not_make_steps_unlike():
    few_rows, many_rows = steps_of([2, 30]).steps
    assert len(few_rows) == len(many_rows)
    assert not any(event[0] == ALLOCATE and event[4] == "row" for event in many_rows)


# -- other micro-batches


@settings(deadline=None)
@given(st.lists(SIZES, min_size=2, max_size=2, unique=True), SIZES, PROGRAMS)
def test_two_shapes_tell_every_size(traced, wanted_size, program):
    events = template_of(traced, **program).events(wanted_size, 0)
    assert canonical(events) == canonical(steps_of([wanted_size], **program).steps[0])


@settings(deadline=None)
@given(st.lists(SIZES, min_size=3, max_size=3, unique=True), SIZES, PROGRAMS)
def test_three_shapes_tell_every_size_of_a_program_with_a_square_mask(traced, wanted_size, program):
    events = template_of(traced, mask=True, **program).events(wanted_size, 0)
    assert canonical(events) == canonical(steps_of([wanted_size], mask=True, **program).steps[0])


def test_two_shapes_are_too_few_for_a_square_mask():
    resized = live_bytes(template_of([4, 8], mask=True).events(16, 0))
    direct = live_bytes(steps_of([16], mask=True).steps[0])
    assert resized.phases["micro-step"] < direct.phases["micro-step"]


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.integers(17, 40), min_size=2, max_size=2, unique=True),
    st.integers(17, 80),
    PROGRAMS,
)
def test_a_chunked_loss_gets_the_chunks_of_the_wanted_size(rows, traced, wanted_size, program):
    assume(wanted_size not in traced)
    family = template_of(traced, rows_per_chunk=rows, **program)
    whole_program = {"rows_per_chunk": rows, "whole_chunks": True, **program}
    events = family.events(wanted_size, Toy(layers=1, **whole_program).chunks(wanted_size))
    assert canonical(events) == canonical(steps_of([wanted_size], **whole_program).steps[0])


@given(st.lists(st.integers(17, 40), min_size=1, max_size=3, unique=True), st.integers(0, 4))
def test_a_traced_size_comes_as_it_was_traced(traced, rows):
    family = template_of(traced, rows_per_chunk=rows)
    for shape in family.shapes:
        assert family.events(shape.size, shape.chunks) is shape.events


@pytest.mark.parametrize("expandable", [False, True])
@settings(deadline=None)
@given(
    st.integers(5, 20),
    st.lists(st.integers(17, 40), min_size=2, max_size=2, unique=True),
    st.integers(41, 80),
    PROGRAMS,
)
def test_size_chunks_and_depth_together_are_exact(expandable, layers, traced, wanted_size, program):
    whole_program = {"rows_per_chunk": 4, "whole_chunks": True, **program}
    truth = steps_of([wanted_size], layers=layers, **whole_program)
    opening = steps_of([wanted_size], **whole_program).opening
    step = template_of(traced, rows_per_chunk=4, **program).events(
        wanted_size, Toy(layers=1, **whole_program).chunks(wanted_size)
    )
    resized = whole_record(opening, step, FEW, layers)
    direct = [*truth.opening, *truth.steps[0]]
    assert canonical(resized) == canonical(direct)
    replay, direct_replay = (
        replayed(e, None, expandable_segments=expandable) for e in (resized, direct)
    )
    assert replay == direct_replay


def test_a_model_whose_layers_cannot_be_told_stays_as_it_is():
    divided = steps_of([4])
    combined = [*divided.opening, *divided.steps[0]]
    assert whole_record(divided.opening, divided.steps[0], 0, 30) == combined
    assert whole_record(divided.opening, divided.steps[0], FEW, FEW) == combined


# -- what does not fit


def shapes(*steps, chunks=0):
    return ShapeFamily(
        shapes=tuple(
            Shape(size=size, chunks=chunks, events=step, work=[])
            for size, step in enumerate(steps, start=1)
        )
    )


def made_and_freed(operator, key=1):
    return [(ALLOCATE, key, 100, "activations", operator, 0), (FREE, key, 0)]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (made_and_freed("mm"), made_and_freed("mm")[:1], "different numbers of events"),
        (made_and_freed("mm"), made_and_freed("bmm"), "different operators"),
        (made_and_freed("mm"), made_and_freed("mm", key=2), "different events"),
        (made_and_freed("mm"), made_and_freed("mm")[::-1], "different events"),
        (made_and_freed("mm"), [(PHASE, "step", 0), (PHASE, "data", 0)], "different events"),
    ],
)
def test_shapes_with_other_events_are_irregular(first, second, reason):
    with pytest.raises(Irregular, match=reason):
        shapes(first, second).events(7, 0)


def test_a_loss_in_too_few_chunks_to_resize_is_irregular():
    toy = {"rows_per_chunk": 5}
    assert Toy(layers=1, **toy).chunks(20) == CHUNKS.smallest - 1
    with pytest.raises(Irregular, match="too few"):
        template_of([20, 30], **toy).events(60, 12)
    template_of([21, 30], **toy).events(60, 12)


def test_sizes_never_fall_below_nothing():
    falling = shapes(*[[(ALLOCATE, 1, n, "temporaries", "mm", 0)] for n in (100, 40)])
    sizes = [falling.events(size, 0)[0][2] for size in (1, 2, 3, 4)]
    assert sizes == [100, 40, 0, 0]
    assert all(a > b or b == 0 for a, b in itertools.pairwise(sizes))


# -- the steps of others


def without(events, *operators):
    """The events but for these operators' storages, and for the marks of phases."""
    keys = {event[1] for event in events if event[0] == ALLOCATE and event[4] in operators}
    return [event for event in events if event[0] != PHASE and event[1] not in keys]


@settings(deadline=None)
@given(SIZES, PROGRAMS, st.sampled_from([0, 4]))
def test_leaving_out_accumulation_gives_the_step_of_one_micro_step(size, program, rows):
    program = {**program, "rows_per_chunk": rows}
    resized = without_accumulation(steps_of([size], **{**program, "accumulation": 2}).steps[0])
    direct = steps_of([size], **{**program, "accumulation": 1}).steps[0]
    # The trainer fetches the batches of a step at once, so there is one more of them; and it looks
    # at each loss whether it is a number, and lets go of it where the next one is there.
    names = ("collate", "isnan", "loss")
    assert canonical(without(resized, *names)) == canonical(without(direct, *names))
    more = live_bytes(resized).peak_bytes - live_bytes(direct).peak_bytes
    assert more in (8 * size - 4, 8 * size, 8 * size + 4)


@given(SIZES, PROGRAMS)
def test_a_step_without_accumulation_is_left_alone(size, program):
    step = steps_of([size], **{**program, "accumulation": 1}).steps[0]
    assert without_accumulation(step) == step


@settings(deadline=None)
@given(
    SIZES,
    SIZES,
    PROGRAMS,
    PASSING,
    PASSING,
)
def test_the_optimizer_of_one_step_can_be_put_into_another(
    size, other_size, program, passing, other_passing
):
    step = steps_of([size], **{**program, "passing": passing}).steps[0]
    other_step = steps_of([other_size], **{**program, "passing": other_passing}).steps[0]
    direct = steps_of([size], **{**program, "passing": other_passing}).steps[0]
    assert canonical(with_optimizer_step(step, other_step)) == canonical(direct)


@settings(deadline=None)
@given(st.integers(5, 9), SIZES, SIZES, PROGRAMS, PASSING, PASSING)
def test_the_optimizer_can_be_put_into_an_opening_too_where_its_state_is_made(
    layers, size, other_size, program, passing, other_passing
):
    steps = steps_of([size], **{**program, "passing": passing})
    other_step = steps_of([other_size], **{**program, "passing": other_passing})
    direct = steps_of([size], layers=layers, **{**program, "passing": other_passing})
    opening = with_optimizer_step(steps.opening, other_step.opening)
    step = with_optimizer_step(steps.steps[0], other_step.steps[0])
    resized = whole_record(opening, step, FEW, layers)
    assert canonical(resized) == canonical([*direct.opening, *direct.steps[0]])
