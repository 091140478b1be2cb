"""A toy program's record at one depth and chunk count, made into its record at another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.estimate.allocator.replay import replayed
from autotune.estimate.records.events import ALLOCATE, FREE, chunk, layer, live_bytes
from autotune.estimate.records.layers import SMALLEST, Irregular, with_chunks, with_layers
from tests.unit.toy_program import Toy, canonical, curve

COUNTS = st.integers(SMALLEST, 30)
PROGRAMS = st.fixed_dictionaries(
    {
        "rows_per_chunk": st.sampled_from([0, 2, 5]),
        "accumulation": st.integers(1, 2),
        "mask": st.booleans(),
        "special_ends": st.booleans(),
        "recomputes": st.booleans(),
        "lag": st.integers(1, 2),
        "between": st.booleans(),
        "passing": st.sampled_from([(), (4096,), (100, 7)]),
    }
)
SIZES = st.lists(st.integers(1, 14), min_size=1, max_size=3)


def record(sizes, **program):
    return Toy(**program).record(sizes)


@settings(deadline=None)
@given(COUNTS, COUNTS, PROGRAMS, SIZES)
def test_a_record_of_few_layers_becomes_that_of_many_and_back(have, wanted, program, sizes):
    made = with_layers(record(sizes, layers=have, **program), have, wanted)
    assert canonical(made) == canonical(record(sizes, layers=wanted, **program))


@settings(deadline=None)
@given(COUNTS, PROGRAMS, SIZES, st.booleans())
def test_peaks_and_reserved_bytes_follow_the_depth_exactly(wanted, program, sizes, expandable):
    made = with_layers(record(sizes, layers=SMALLEST, **program), SMALLEST, wanted)
    whole = record(sizes, layers=wanted, **program)
    assert curve(made) == curve(whole)
    assert live_bytes(made) == live_bytes(whole)
    one, other = (replayed(e, None, expandable_segments=expandable) for e in (made, whole))
    assert one == other


@settings(deadline=None)
@given(COUNTS, PROGRAMS, SIZES, st.integers(0, 999), st.integers(0, 999), st.booleans())
def test_the_order_in_which_many_die_at_once_does_not_matter(
    wanted, program, sizes, order, other_order, expandable
):
    few = record(sizes, layers=SMALLEST, cached=order, **program)
    made = with_layers(few, SMALLEST, wanted)
    whole = record(sizes, layers=wanted, cached=other_order, **program)
    assert curve(made) == curve(whole)
    one, other = (replayed(e, None, expandable_segments=expandable) for e in (made, whole))
    assert one == other


@settings(deadline=None)
@given(COUNTS, COUNTS, st.integers(1, 6), st.integers(1, 6))
def test_a_loss_of_few_chunks_becomes_one_of_many_and_back(have, wanted, rows, layers):
    # The micro-batch stays, so that all but the chunks is the same.
    few = Chunked(layers=layers, rows_per_chunk=rows, count=have).record([9, 9])
    many = Chunked(layers=layers, rows_per_chunk=rows, count=wanted).record([9, 9])
    made = with_chunks(few, have, wanted)
    assert canonical(made) == canonical(many)
    assert live_bytes(made) == live_bytes(many)


class Chunked(Toy):
    """The toy with a number of whole chunks that is told, not counted."""

    def __init__(self, *, count, **program):
        super().__init__(whole_chunks=True, **program)
        self._count = count

    def chunks(self, size):
        return self._count


@settings(deadline=None)
@given(COUNTS, st.integers(2, 9), st.data())
def test_a_last_chunk_that_is_a_part_counts_as_a_whole_one(chunks, rows, data):
    size = chunks * rows - data.draw(st.integers(0, rows - 1))
    part = record([size], layers=2, rows_per_chunk=rows)
    whole = record([size], layers=2, rows_per_chunk=rows, whole_chunks=True)
    assert canonical(with_chunks(part, chunks, chunks)) == canonical(whole)


@settings(deadline=None)
@given(COUNTS, COUNTS)
def test_chunks_and_layers_are_resized_one_after_the_other(layers, chunks):
    few = Chunked(layers=SMALLEST, rows_per_chunk=3, count=SMALLEST).record([7])
    many = Chunked(layers=layers, rows_per_chunk=3, count=chunks).record([7])
    made = with_layers(with_chunks(few, SMALLEST, chunks), SMALLEST, layers)
    assert canonical(made) == canonical(many)
    other = with_chunks(with_layers(few, SMALLEST, layers), SMALLEST, chunks)
    assert canonical(other) == canonical(many)


def test_a_record_that_has_the_wanted_depth_is_left_alone():
    for layers in (1, 4, 9):
        events = record([5], layers=layers)
        assert with_layers(events, layers, layers) is events


def test_a_loss_that_is_not_chunked_has_no_chunks_to_resize():
    events = record([5], layers=3)
    assert with_chunks(events, 0, 0) is events


@pytest.mark.parametrize(("have", "wanted"), [(4, 9), (9, 4), (1, 5), (5, 0)])
def test_too_few_stretches_cannot_stand_for_others(have, wanted):
    with pytest.raises(Irregular, match=f"{have} stretches cannot stand for {wanted}"):
        with_layers(record([5], layers=have), have, wanted)
    with pytest.raises(Irregular):
        with_chunks(Chunked(layers=1, rows_per_chunk=2, count=have).record([5]), have, wanted)


def handed_on(layers, second):
    """Each layer frees the last of what the one below made; layer 1 makes `second` storages."""
    events, key, below = [], 0, None
    for index in range(layers):
        for _ in range(second if index == 1 else 1):
            key += 1
            events.append((ALLOCATE, key, 100, "activations", "mm", layer(index)))
        if below is not None:
            events.append((FREE, below, layer(index)))
        below = key
    return events


def test_layers_that_do_not_hand_on_alike_are_irregular():
    assert curve(with_layers(handed_on(5, 1), 5, 8)) == curve(handed_on(8, 1))
    with pytest.raises(Irregular, match="does not repeat"):
        with_layers(handed_on(5, 2), 5, 8)


def test_chunks_that_do_not_hand_on_alike_are_irregular():
    def mirrored(events):
        return [(*event[:-1], chunk(event[-1] - 1)) for event in events]

    assert curve(with_chunks(mirrored(handed_on(5, 1)), 5, 8)) == curve(handed_on(8, 1))
    with pytest.raises(Irregular, match="does not repeat"):
        with_chunks(mirrored(handed_on(5, 2)), 5, 8)


def let_go_of(*frees, layers=5):
    """Layers make a storage each; then `frees`: (layer that frees, layer that made it)."""
    events = [(ALLOCATE, n, 100, "activations", "mm", layer(n)) for n in range(layers)]
    return events + [
        event
        for by, of in frees
        for event in ((ALLOCATE, 9 + of, 1, "temporaries", "add", layer(by)), (FREE, of, layer(by)))
    ]


def test_a_list_that_one_layer_lets_go_of_is_freed_whole():
    made = with_layers(let_go_of(*((4, n) for n in range(5))), 5, 9)
    assert sorted(curve(made))[-1] == 900 + 1
    assert len([event for event in made if event[0] == FREE]) == 9


def test_layers_that_free_each_other_without_a_pattern_are_irregular():
    with_layers(let_go_of((2, 0), (3, 1), (4, 2)), 5, 9)
    with pytest.raises(Irregular, match="freed twice"):
        with_layers(let_go_of((2, 0), (4, 1)), 5, 9)
    with pytest.raises(Irregular, match="never be freed"):
        with_layers(let_go_of((3, 2), layers=6), 6, 9)  # of six, the fourth is left out


@given(st.integers(0, 4), COUNTS)
def test_what_was_made_outside_is_freed_once(by, wanted):
    outside = [(ALLOCATE, 77, 50, "activations", "cat", 0)]
    made = with_layers([*outside, *let_go_of(), (FREE, 77, layer(by))], SMALLEST, wanted)
    assert [event[1] for event in made if event[0] == FREE] == [77]
    assert curve(made)[-1] == wanted * 100
