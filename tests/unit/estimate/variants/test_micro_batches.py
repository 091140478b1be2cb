"""Which micro-batches are traced, and how many chunks the loss of a micro-batch has."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from autotune.estimate.records.layers import CHUNKS
from autotune.estimate.variants.micro_batches import (
    LossChunks,
    Worst,
    chunk_count,
    histogram,
    micro_batch,
    sizes_to_trace,
    smallest_with_chunks,
)

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=20).map(tuple)
ROWS_PER_CHUNK = st.integers(1, 300)


def chunks_of(batch, loss, rows):
    return chunk_count(batch, LossChunks(rows=rows, labelled_only=loss == "chunked_nll"))


def worst(lengths, labelled=1, flat=False):
    return Worst(lengths=lengths, labelled=labelled, flat=flat)


# -- a worst micro-batch


@pytest.mark.parametrize(
    ("lengths", "flat", "size", "tokens", "padded"),
    [
        ((7,), False, 1, 7, False),
        ((7, 7), False, 2, 14, False),
        ((7, 6, 7), False, 3, 21, True),
        ((7, 6, 7), True, 20, 20, False),
        ((7, 7), True, 14, 14, False),
    ],
)
def test_the_measure_is_rows_or_tokens_and_only_rows_are_padded(
    lengths, flat, size, tokens, padded
):
    batch = worst(lengths, flat=flat)
    assert (batch.size, batch.tokens, batch.padded) == (size, tokens, padded)


# -- chunks


@pytest.mark.parametrize(
    ("batch", "loss", "rows", "chunks"),
    [
        (worst((9, 5)), "nll", 8, 2),  # 2 rows of 9, padded, of which 8 have a next token
        (worst((9, 5)), "nll", 7, 3),
        (worst((9, 5), flat=True), "nll", 13, 1),  # one row of 14
        (worst((9, 5), flat=True), "nll", 12, 2),
        (worst((9, 5), labelled=12), "chunked_nll", 6, 2),
        (worst((9, 5), labelled=13), "chunked_nll", 6, 3),
        (worst((9, 5), labelled=0), "chunked_nll", 6, 1),
        (worst((1,)), "nll", 128, 1),
    ],
)
def test_the_plain_loss_has_chunks_of_positions_and_the_chunked_one_of_labels(
    batch, loss, rows, chunks
):
    assert chunks_of(batch, loss, rows) == chunks


@given(LENGTHS, st.integers(0, 5000), st.booleans(), ROWS_PER_CHUNK)
def test_chunks_hold_all_that_counts_and_none_is_empty(lengths, labelled, flat, rows):
    batch = worst(lengths, labelled, flat)
    chunks = chunks_of(batch, "chunked_nll", rows)
    assert chunks >= 1
    assert (chunks - 1) * rows < max(labelled, 1) <= chunks * rows
    positions = chunks_of(batch, "nll", 1)
    assert chunks_of(batch, "nll", rows) == -(-positions // rows)


@given(LENGTHS, ROWS_PER_CHUNK, st.integers(0, 9))
def test_which_tokens_are_padding_does_not_matter_to_the_plain_loss(lengths, rows, missing_tokens):
    even = worst((max(lengths),) * len(lengths))
    assert chunks_of(worst(lengths), "nll", rows) == chunks_of(even, "nll", rows)
    shorter = worst((*lengths, max(max(lengths) - missing_tokens, 1)))
    assert chunks_of(shorter, "nll", rows) >= chunks_of(worst(lengths), "nll", rows)


# -- what is traced


@given(st.integers(1, 5000), st.integers(1, 4000), st.booleans(), st.booleans())
def test_a_micro_batch_has_the_measure_it_is_made_for(size, length, flat, padded):
    traced_batch = micro_batch(size, length, flat=flat, padded=padded, share=0.5)
    assert traced_batch.labelled == 0.5
    assert min(traced_batch.lengths) >= 1
    batch = worst(traced_batch.lengths, flat=flat)
    assert batch.size == size
    if flat:
        assert max(traced_batch.lengths) <= length
    else:
        assert max(traced_batch.lengths) == length
        assert batch.padded == (padded and size > 1 and length > 1)


WANTED = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 5000)), min_size=1, max_size=12)
SMALLEST = st.one_of(st.integers(1, 40), st.integers(1, 400))


UNSORTED = st.one_of(st.none(), st.integers(0, 400))


@given(WANTED, st.booleans(), SMALLEST, UNSORTED, st.booleans())
@example([6, 7, 8, 9], False, 7, None, False)
@example([1, 2, 4, 8, 16], False, 2, 3, False)
def test_every_size_is_traced_or_can_be_scaled_to(sizes, flat, smallest, unsorted, linear):
    traced = sizes_to_trace(
        sizes,
        flat=flat,
        smallest_with_chunks=smallest,
        most_unsorted=unsorted,
        linear=linear,
    )
    assert set(traced.direct) <= set(sizes)
    for size in set(sizes) - set(traced.direct):
        measures = traced.measures(size)
        assert len(measures) == 3 if flat and not linear else len(measures) in (2, 3)
        assert not flat or len(traced.every) >= 3  # speeds are curves through three sizes
        assert smallest <= min(measures) <= size
        assert flat or 1 not in {size, *measures}  # one row alone is like no others
        if unsorted is not None:  # its kernels are those of what it follows from
            assert {size <= unsorted} == {measure <= unsorted for measure in measures}
    assert all(traced.measures(size) == [size] for size in traced.direct)


@given(WANTED, st.booleans(), SMALLEST, UNSORTED)
def test_scaling_never_costs_more_traces_than_it_saves(sizes, flat, smallest, unsorted):
    traced = sizes_to_trace(sizes, flat=flat, smallest_with_chunks=smallest, most_unsorted=unsorted)
    assert len(set(traced.direct)) == len(traced.direct)
    assert len(traced.every) <= len(set(sizes))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.booleans(), st.integers(1, 400))
def test_the_order_of_sizes_and_repeats_do_not_matter(sizes, flat, smallest):
    options = {"flat": flat, "smallest_with_chunks": smallest}
    assert sizes_to_trace(sizes, **options) == sizes_to_trace([*sizes[::-1], sizes[0]], **options)


@given(st.integers(2, 4000), st.sampled_from([128, 256]))
def test_the_smallest_size_of_padded_rows_has_chunks_enough(length, rows_per_chunk):
    size = smallest_with_chunks(length - 1, rows_per_chunk, flat=False)
    traced_batch = micro_batch(size, length, flat=False, padded=True, share=1.0)
    assert chunks_of(worst(traced_batch.lengths), "nll", rows_per_chunk) > CHUNKS.smallest
    # Not one row more than is needed, but for the one in reserve.
    fewer = worst((length,) * max(size - 2, 1))
    assert size <= 2 or chunks_of(fewer, "nll", rows_per_chunk) <= CHUNKS.smallest


@given(st.sampled_from([128, 256]))
def test_the_smallest_size_of_flat_rows_has_chunks_enough_and_is_round(rows_per_chunk):
    size = smallest_with_chunks(1.0, rows_per_chunk, flat=True)
    assert size % 128 == 0
    traced_batch = micro_batch(size, 999, flat=True, padded=False, share=1.0)
    assert (
        chunks_of(worst(traced_batch.lengths, flat=True), "nll", rows_per_chunk) > CHUNKS.smallest
    )


@given(st.integers(10, 2000), st.floats(0.01, 1.0), st.sampled_from([128, 256]))
def test_rows_of_which_little_counts_need_more_rows(length, share, rows_per_chunk):
    positions = max(round(length * share), 1)
    assume(positions < length)
    size = smallest_with_chunks(positions, rows_per_chunk, flat=False)
    labelled = worst((length,) * size, labelled=size * positions)
    assert chunks_of(labelled, "chunked_nll", rows_per_chunk) > CHUNKS.smallest


# -- sizes met


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=60))
def test_a_histogram_counts_every_micro_batch_once(sizes):
    bins = histogram(sizes)
    assert sum(count for *_, count in bins) == len(sizes)
    assert [(tokens, padded) for tokens, padded, _ in bins] == sorted(set(sizes))
    assert all(sizes.count((tokens, padded)) == count for tokens, padded, count in bins)


def test_what_comes_in_pairs_is_traced_in_pairs():
    sizes = [2, 4, 8, 16, 32]
    traced = sizes_to_trace(sizes, flat=False, smallest_with_chunks=2, most_unsorted=6, multiple=2)
    assert traced.families and all(size % 2 == 0 for size in traced.every)
    alone = sizes_to_trace(sizes, flat=False, smallest_with_chunks=2, most_unsorted=6)
    assert 7 in alone.every
