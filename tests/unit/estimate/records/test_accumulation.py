"""A second micro-step, from a trace of one: as if it had been traced."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.estimate.records.accumulation import accumulation_of, with_accumulation
from autotune.estimate.records.events import ALLOCATE, FREE, MICRO_STEP, MOVE, PHASE, live_bytes
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import divide
from tests.unit.toy_program import Toy, canonical

SIZES = st.integers(1, 40)
PROGRAMS = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 6),
        "rows_per_chunk": st.sampled_from([0, 4]),
        "mask": st.booleans(),
        "recomputes": st.booleans(),
        "lag": st.integers(1, 2),
        "cached": st.sampled_from([None, 1]),
        "workspace": st.sampled_from([0, 4096]),
        "passing": st.sampled_from([(), (4096,), (100, 7)]),
    }
)


def divided(sizes, accumulation, program):
    return divide(Toy(accumulation=accumulation, **program).record([3, *sizes]))


@settings(deadline=None)
@given(SIZES, PROGRAMS)
def test_a_second_micro_step_is_as_if_it_had_been_traced(size, program):
    opening, (one,) = divided([], 2, program).opening, divided([size], 1, program).steps
    (two,) = divided([size], 2, program).steps
    found = with_accumulation(one, accumulation_of(opening, one))
    assert canonical(found) == canonical(two)
    assert live_bytes(found) == live_bytes(two)


def opening_with(change):
    """An opening of two micro-steps, and a step of one; the second micro-step changed."""
    program = {"layers": 2}
    opening, (one,) = divided([], 2, program).opening, divided([5], 1, program).steps
    second = [n for n, e in enumerate(opening) if e[0] == PHASE and e[1] == MICRO_STEP][1]
    return change(opening, second), one


def test_what_a_second_micro_step_does_otherwise_is_found():
    def larger(opening, second):
        n = next(n for n in range(second, len(opening)) if opening[n][0] == ALLOCATE)
        event = opening[n]
        return [*opening[:n], (*event[:2], event[2] + 1, *event[3:]), *opening[n + 1 :]]

    with pytest.raises(Irregular, match="does not do what the first did"):
        accumulation_of(*opening_with(larger))


def test_gradients_that_stay_are_found():
    def kept(opening, second):
        gradients = {e[1] for e in opening if e[0] == MOVE}
        first_free = next(
            n
            for n in range(second, len(opening))
            if opening[n][0] == FREE and opening[n - 1][:2] == (ALLOCATE, opening[n][1])
        )
        assert opening[first_free][1] not in gradients
        return [*opening[:first_free], *opening[first_free + 1 :]]

    with pytest.raises(Irregular, match="does not do what the first did"):
        accumulation_of(*opening_with(kept))


def test_an_order_in_which_a_graph_dies_does_not_matter():
    def turned(opening, second):
        n = next(
            n for n in range(second, len(opening)) if opening[n][0] == opening[n + 1][0] == FREE
        )
        return [*opening[:n], opening[n + 1], opening[n], *opening[n + 2 :]]

    opening, one = opening_with(turned)
    assert accumulation_of(opening, one) == accumulation_of(*opening_with(lambda o, _: o))


def test_an_opening_of_one_micro_step_tells_nothing():
    opening, (one,) = divided([], 1, {"layers": 2}).opening, divided([5], 1, {"layers": 2}).steps
    with pytest.raises(Irregular, match="two micro-steps"):
        accumulation_of(opening, one)


def test_a_step_that_has_two_micro_steps_gets_no_third():
    opening, (one,) = divided([], 2, {"layers": 2}).opening, divided([5], 1, {"layers": 2}).steps
    found = accumulation_of(opening, one)
    with pytest.raises(Irregular, match="one micro-step"):
        with_accumulation(with_accumulation(one, found), found)


def test_a_step_that_fetches_less_than_a_micro_batch_is_refused():
    opening, step = opening_with(lambda events, _: events)
    accumulation = accumulation_of(opening, step)
    begin = next(n for n, event in enumerate(step) if event[0] == PHASE and event[1] == MICRO_STEP)
    without_batch = [step[0], *step[begin:]]
    with pytest.raises(Irregular, match="one micro-batch more"):
        accumulation_of(opening, without_batch)
    with pytest.raises(Irregular, match="less than a micro-batch"):
        with_accumulation(without_batch, accumulation)
