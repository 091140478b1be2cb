"""Autograd's accumulation, put back in place: made-up events, as the tracer marks them."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.records.events import (
    ACTIVATIONS,
    ALLOCATE,
    FREE,
    GRADIENTS,
    MOVE,
    PHASE,
    TEMPORARIES,
    live_bytes,
)
from autotune.estimate.tracing.tracer import merge_accumulation

ACCUMULATE = "i"


def make(key, size=100):
    return (ALLOCATE, key, size, TEMPORARIES, "op", 0)


def free(key):
    return (FREE, key, 0)


def accumulate(old, new, size=100):
    """The second gradient is added to the first; for fake tensors that makes a third storage."""
    return [make(new, size), (ACCUMULATE, new, old)]


def test_a_sum_takes_the_place_of_a_gradient_that_dies_of_it():
    events = [make(0), make(1), *accumulate(0, 2), free(0), free(1), free(2)]
    assert merge_accumulation(events) == [make(0), make(1), free(1), free(0)]
    assert live_bytes(merge_accumulation(events)).peak_bytes == 200


def test_a_gradient_that_somebody_else_still_holds_is_left_alone():
    events = [make(0), make(1), *accumulate(0, 2), free(1), make(3), free(0), free(2), free(3)]
    remaining = [event for event in events if event[0] != ACCUMULATE]
    assert merge_accumulation(events) == remaining
    assert live_bytes(remaining).peak_bytes == 300


def test_a_gradient_that_outlives_the_trace_is_left_alone():
    assert merge_accumulation([make(0), *accumulate(0, 1)]) == [make(0), make(1)]


def test_a_phase_between_sum_and_death_keeps_them_apart():
    events = [make(0), *accumulate(0, 1), (PHASE, "clip", 0), free(0)]
    assert merge_accumulation(events) == [make(0), make(1), (PHASE, "clip", 0), free(0)]


def test_three_gradients_of_one_tensor_need_one_sum():
    events = [make(0), make(1), *accumulate(0, 2), free(0), free(1)]
    events += [make(3), *accumulate(2, 4), free(2), free(3), free(4)]
    assert merge_accumulation(events) == [make(0), make(1), free(1), make(3), free(3), free(0)]


def test_what_is_said_of_the_sum_is_said_of_the_first_storage():
    events = [make(0), *accumulate(0, 1), (MOVE, 1, GRADIENTS, 3), free(0), make(2)]
    assert merge_accumulation(events) == [make(0), (MOVE, 0, GRADIENTS, 3), make(2)]
    assert live_bytes(merge_accumulation(events)).parts == {GRADIENTS: 100, TEMPORARIES: 100}


@st.composite
def programs(draw):
    """Events of a random program, and how many of its sums happen in place."""
    events, live, in_place, key = [], {}, 0, 0
    for _ in range(draw(st.integers(0, 40))):
        what = draw(st.sampled_from(["make", "free", "accumulate", "move"]))
        storage = draw(st.sampled_from(sorted(live))) if live else None
        if what == "make" or storage is None:
            size = draw(st.integers(1, 1000))
            events.append(make(key, size))
            live[key] = size
            key += 1
        elif what == "free":
            events.append(free(storage))
            del live[storage]
        elif what == "move":
            events.append((MOVE, storage, ACTIVATIONS, 0))
        else:
            events += accumulate(storage, key, live[storage])
            live[key] = live[storage]
            key += 1
            if draw(st.booleans()):
                events.append(free(storage))
                del live[storage]
                in_place += 1
            else:  # somebody uses it again
                events.append((PHASE, "use", 0))
    return events, in_place


@given(programs())
def test_merging_only_takes_away_what_was_never_allocated(program):
    events, in_place = program
    raw = [event for event in events if event[0] != ACCUMULATE]
    result = merge_accumulation(events)
    count = {kind: sum(event[0] == kind for event in raw) for kind in (ALLOCATE, FREE, MOVE, PHASE)}
    counts = {kind: sum(event[0] == kind for event in result) for kind in count}
    assert counts == {**count, ALLOCATE: count[ALLOCATE] - in_place, FREE: count[FREE] - in_place}
    assert live_bytes(result).peak_bytes <= live_bytes(raw).peak_bytes


@given(programs())
def test_every_merged_storage_is_born_once_and_dies_at_most_once_after_that(program):
    live, born = set(), set()
    for event in merge_accumulation(program[0]):
        if event[0] == ALLOCATE:
            assert event[1] not in born
            live.add(event[1])
            born.add(event[1])
        elif event[0] == FREE:
            live.remove(event[1])
        elif event[0] == MOVE:
            assert event[1] in live


@given(programs())
def test_the_same_bytes_are_live_at_the_end(program):
    def live_at_end(events):
        sizes = {}
        for event in events:
            if event[0] == ALLOCATE:
                sizes[event[1]] = event[2]
            elif event[0] == FREE:
                del sizes[event[1]]
        return sum(sizes.values())

    assert live_at_end(merge_accumulation(program[0])) == live_at_end(program[0])
