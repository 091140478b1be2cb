"""A toy program's record at one depth and chunk count, made into its record at another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.estimate.allocator.replay import replayed
from autotune.estimate.records.events import ALLOCATE, FREE, chunk, layer, live_bytes
from autotune.estimate.records.layers import (
    CHUNKS,
    LAYERS,
    Irregular,
    with_chunks,
    with_layers,
)
from tests.unit.toy_program import Toy, canonical, curve

FEW = LAYERS.smallest
COUNTS, CHUNK_COUNTS = st.integers(FEW, 30), st.integers(CHUNKS.smallest, 30)
PROGRAMS = st.fixed_dictionaries(
    {
        "rows_per_chunk": st.sampled_from([0, 2, 5]),
        "accumulation": st.integers(1, 2),
        "mask": st.booleans(),
        "special_ends": st.booleans(),
        "recomputes": st.booleans(),
        "between": st.booleans(),
        "passing": st.sampled_from([(), (4096,), (100, 7)]),
    }
)
SIZES = st.lists(st.integers(1, 14), min_size=1, max_size=3)


def record(sizes, **program):
    return Toy(**program).record(sizes)


@settings(deadline=None)
@given(COUNTS, COUNTS, PROGRAMS, SIZES)
def test_a_record_of_few_layers_becomes_that_of_many_and_back(
    traced_count, wanted_count, program, sizes
):
    resized = with_layers(record(sizes, layers=traced_count, **program), traced_count, wanted_count)
    assert canonical(resized) == canonical(record(sizes, layers=wanted_count, **program))


@settings(deadline=None)
@given(COUNTS, PROGRAMS, SIZES, st.booleans())
def test_peaks_and_reserved_bytes_follow_the_depth_exactly(
    wanted_count, program, sizes, expandable
):
    resized = with_layers(record(sizes, layers=FEW, **program), FEW, wanted_count)
    direct = record(sizes, layers=wanted_count, **program)
    assert curve(resized) == curve(direct)
    assert live_bytes(resized) == live_bytes(direct)
    replay, direct_replay = (
        replayed(e, None, expandable_segments=expandable) for e in (resized, direct)
    )
    assert replay == direct_replay


@settings(deadline=None)
@given(COUNTS, PROGRAMS, SIZES, st.integers(0, 999), st.integers(0, 999), st.booleans())
def test_the_order_in_which_many_die_at_once_does_not_matter(
    wanted_count, program, sizes, order, other_order, expandable
):
    shallow = record(sizes, layers=FEW, cached=order, **program)
    resized = with_layers(shallow, FEW, wanted_count)
    direct = record(sizes, layers=wanted_count, cached=other_order, **program)
    assert curve(resized) == curve(direct)
    replay, direct_replay = (
        replayed(e, None, expandable_segments=expandable) for e in (resized, direct)
    )
    assert replay == direct_replay


@settings(deadline=None)
@given(CHUNK_COUNTS, CHUNK_COUNTS, st.integers(1, 6), st.integers(1, 6))
def test_a_loss_of_few_chunks_becomes_one_of_many_and_back(
    traced_count, wanted_count, rows, layers
):
    # The micro-batch stays, so that all but the chunks is the same.
    shallow = Chunked(layers=layers, rows_per_chunk=rows, count=traced_count).record([9, 9])
    deep = Chunked(layers=layers, rows_per_chunk=rows, count=wanted_count).record([9, 9])
    resized = with_chunks(shallow, traced_count, wanted_count)
    assert canonical(resized) == canonical(deep)
    assert live_bytes(resized) == live_bytes(deep)


class Chunked(Toy):
    """The toy with a number of whole chunks that is told, not counted."""

    def __init__(self, *, count, **program):
        super().__init__(whole_chunks=True, **program)
        self._count = count

    def chunks(self, size):
        return self._count


@settings(deadline=None)
@given(CHUNK_COUNTS, st.integers(2, 9), st.data())
def test_a_last_chunk_that_is_a_part_counts_as_a_whole_one(chunks, rows, data):
    size = chunks * rows - data.draw(st.integers(0, rows - 1))
    part = record([size], layers=2, rows_per_chunk=rows)
    direct = record([size], layers=2, rows_per_chunk=rows, whole_chunks=True)
    assert canonical(with_chunks(part, chunks, chunks)) == canonical(direct)


@settings(deadline=None)
@given(COUNTS, CHUNK_COUNTS)
def test_chunks_and_layers_are_resized_one_after_the_other(layers, chunks):
    few = CHUNKS.smallest
    shallow = Chunked(layers=FEW, rows_per_chunk=3, count=few).record([7])
    deep = Chunked(layers=layers, rows_per_chunk=3, count=chunks).record([7])
    resized = with_layers(with_chunks(shallow, few, chunks), FEW, layers)
    assert canonical(resized) == canonical(deep)
    layers_first = with_chunks(with_layers(shallow, FEW, layers), few, chunks)
    assert canonical(layers_first) == canonical(deep)


def test_a_record_that_has_the_wanted_depth_is_left_alone():
    for layers in (1, 4, 9):
        events = record([5], layers=layers)
        assert with_layers(events, layers, layers) is events


def test_a_loss_that_is_not_chunked_has_no_chunks_to_resize():
    events = record([5], layers=3)
    assert with_chunks(events, 0, 0) is events


@pytest.mark.parametrize(("traced_count", "wanted_count"), [(3, 9), (9, 3), (1, 4), (4, 0)])
def test_too_few_stretches_cannot_stand_for_others(traced_count, wanted_count):
    with pytest.raises(
        Irregular, match=f"{traced_count} stretches cannot stand for {wanted_count}"
    ):
        with_layers(record([5], layers=traced_count), traced_count, wanted_count)
    with pytest.raises(Irregular):
        with_chunks(
            Chunked(layers=1, rows_per_chunk=2, count=traced_count).record([5]),
            traced_count,
            wanted_count,
        )


def handed_on(layers, second):
    """Each layer frees the last of what the one below made; layer 1 makes `second` storages."""
    events, key, previous = [], 0, None
    for index in range(layers):
        for _ in range(second if index == 1 else 1):
            key += 1
            events.append((ALLOCATE, key, 100, "activations", "mm", layer(index)))
        if previous is not None:
            events.append((FREE, previous, layer(index)))
        previous = key
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


@settings(deadline=None)
@given(st.integers(FEW + 1, 30), PROGRAMS, SIZES)
def test_what_is_kept_for_longer_than_a_layer_is_irregular(wanted_count, program, sizes):
    with pytest.raises(Irregular, match="freed"):
        with_layers(record(sizes, layers=FEW, lag=2, **program), FEW, wanted_count)


def let_go_of(*frees, layers=5):
    """Layers make a storage each; then `frees`: (layer that frees, layer that made it)."""
    events = [(ALLOCATE, n, 100, "activations", "mm", layer(n)) for n in range(layers)]
    return events + [
        event
        for by, of in frees
        for event in ((ALLOCATE, 9 + of, 1, "temporaries", "add", layer(by)), (FREE, of, layer(by)))
    ]


def test_a_list_that_one_layer_lets_go_of_is_freed_whole():
    resized = with_layers(let_go_of(*((4, n) for n in range(5))), 5, 9)
    assert sorted(curve(resized))[-1] == 900 + 1
    assert len([event for event in resized if event[0] == FREE]) == 9


def test_layers_that_free_each_other_without_a_pattern_are_irregular():
    with_layers(let_go_of((2, 1), (3, 2), (4, 3)), 5, 9)
    with pytest.raises(Irregular, match="freed twice"):
        with_layers(let_go_of((2, 0), (4, 1)), 5, 9)
    with pytest.raises(Irregular, match="never be freed"):
        with_layers(let_go_of((3, 2), layers=6), 6, 9)  # of six, the fourth is left out


@given(st.integers(0, FEW - 1), COUNTS)
def test_what_was_made_outside_is_freed_once(by, wanted_count):
    outside = [(ALLOCATE, 77, 50, "activations", "cat", 0)]
    made = [*outside, *let_go_of(layers=FEW), (FREE, 77, layer(by))]
    resized = with_layers(made, FEW, wanted_count)
    assert [event[1] for event in resized if event[0] == FREE] == [77]
    assert curve(resized)[-1] == wanted_count * 100
