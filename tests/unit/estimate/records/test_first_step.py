"""A first optimizer step as large as the later ones, made of a short one and of a later one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.estimate.records.events import (
    ACTIVATIONS,
    ALLOCATE,
    CASTS,
    COMMUNICATION,
    DATA,
    FREE,
    MICRO_STEP,
    PHASE,
    STEP,
    TEMPORARIES,
    WEIGHTS,
    training_start,
)
from autotune.estimate.records.first_step import EMPTY_CACHE, with_first_step, with_smaller_batches
from autotune.estimate.records.layers import LAYERS
from autotune.estimate.records.shapes import divide, whole_record
from tests.unit.toy_program import Toy, canonical

FEW = LAYERS.smallest
SIZES = st.integers(1, 40)
PROGRAMS = st.fixed_dictionaries(
    {
        "accumulation": st.integers(1, 2),
        "special_ends": st.booleans(),
        "recomputes": st.booleans(),
        "rows_per_chunk": st.sampled_from([0, 0, 4]),
        "passing": st.sampled_from([(), (4096,), (100, 7)]),
        "workspace": st.sampled_from([0, 8000]),
    }
)


def run_of(sizes, *, layers=FEW, **program):
    return divide(Toy(layers=layers, **program).record(sizes))


def made_and_direct(size, **program):
    """A first step of that size put together, and one that was run."""
    short_run = run_of([3, size], **program)
    return with_first_step(short_run.opening, short_run.steps[0]), run_of(
        [size, size], **program
    ).opening


def compared(events):
    """The events without rows that are made and dropped, in the order that an allocator sees."""
    rows = {e[1] for e in events if e[0] == ALLOCATE and e[4] == "row"}
    lasting = [e for e in events if e != EMPTY_CACHE and (e[0] == PHASE or e[1] not in rows)]
    while (
        lasting[-1][0] == FREE
    ):  # in which order the next step lets go of what is left does not count
        lasting.pop()
    return canonical(lasting)


@settings(deadline=None)
@given(SIZES, PROGRAMS)
def test_it_is_the_first_step_that_would_have_been_traced(size, program):
    resized, direct = made_and_direct(size, **{**program, "rows_per_chunk": 0})
    assert compared(resized) == compared(direct)


@settings(deadline=None)
@given(st.integers(20, 40), PROGRAMS)
def test_nothing_of_it_but_states_and_workspaces_is_left(size, program):
    def live_at_end(events):
        freed = {event[1] for event in events if event[0] == FREE}
        return sorted(e[2:5] for e in events if e[0] == ALLOCATE and e[1] not in freed)

    resized, direct = made_and_direct(size, **program)
    assert live_at_end(resized) == live_at_end(direct)


@settings(deadline=None)
@given(st.integers(5, 9), SIZES, PROGRAMS)
def test_it_can_be_made_as_deep_as_the_model(layers, size, program):
    program = {**program, "rows_per_chunk": 0}
    short_run = run_of([3, size], **program)
    opening = with_first_step(short_run.opening, short_run.steps[0])
    direct = run_of([size, size], layers=layers, **program).opening
    assert compared(whole_record(opening, [], FEW, layers)) == compared(direct)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_cache_is_given_back_where_a_training_begins(accumulation):
    short_run = run_of([3, 9], accumulation=accumulation)
    resized = with_first_step(short_run.opening, short_run.steps[0])
    start = training_start(resized)
    assert resized[start][:2] == (PHASE, DATA)
    assert resized[start - 1] == EMPTY_CACHE


def test_smaller_batches_leave_weights_and_the_optimizer_as_they_are():
    building = [(ALLOCATE, 0, 4000, WEIGHTS, "empty", 0)]
    step = [
        (PHASE, MICRO_STEP, 0),
        (ALLOCATE, 1, 1000, ACTIVATIONS, "mm", 0),
        (ALLOCATE, 2, 2000, CASTS, "_to_copy", 0),  # of the weights, in another precision
        (ALLOCATE, 5, 700, COMMUNICATION, "empty", 0),  # gathered by an engine
        (PHASE, MICRO_STEP, 0),
        (ALLOCATE, 3, 1000, ACTIVATIONS, "mm", 0),
        (PHASE, STEP, 0),
        (ALLOCATE, 4, 1000, TEMPORARIES, "mul", 0),
    ]
    smaller = with_smaller_batches(step, building, [0.25, 0.5])
    assert [event[2] for event in smaller if event[0] == ALLOCATE] == [250, 2000, 700, 500, 1000]
