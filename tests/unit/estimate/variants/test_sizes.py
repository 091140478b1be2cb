"""Which micro-batches are traced, and how many chunks the loss of a micro-batch has."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from autotune.estimate.records.shapes import CHUNKS
from autotune.estimate.variants.sizes import (
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


def chunks_of(one, loss, rows):
    return chunk_count(one, LossChunks(rows=rows, labelled_only=loss == "chunked_nll"))


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
    one = worst(lengths, flat=flat)
    assert (one.size, one.tokens, one.padded) == (size, tokens, padded)


# -- chunks


@pytest.mark.parametrize(
    ("one", "loss", "rows", "chunks"),
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
    one, loss, rows, chunks
):
    assert chunks_of(one, loss, rows) == chunks


@given(LENGTHS, st.integers(0, 5000), st.booleans(), ROWS_PER_CHUNK)
def test_chunks_hold_all_that_counts_and_none_is_empty(lengths, labelled, flat, rows):
    one = worst(lengths, labelled, flat)
    chunks = chunks_of(one, "chunked_nll", rows)
    assert chunks >= 1
    assert (chunks - 1) * rows < max(labelled, 1) <= chunks * rows
    positions = chunks_of(one, "nll", 1)
    assert chunks_of(one, "nll", rows) == -(-positions // rows)


@given(LENGTHS, ROWS_PER_CHUNK, st.integers(0, 9))
def test_which_tokens_are_padding_does_not_matter_to_the_plain_loss(lengths, rows, less):
    even = worst((max(lengths),) * len(lengths))
    assert chunks_of(worst(lengths), "nll", rows) == chunks_of(even, "nll", rows)
    shorter = worst((*lengths, max(max(lengths) - less, 1)))
    assert chunks_of(shorter, "nll", rows) >= chunks_of(worst(lengths), "nll", rows)


# -- what is traced


@given(st.integers(1, 5000), st.integers(1, 4000), st.booleans(), st.booleans())
def test_a_micro_batch_has_the_measure_it_is_made_for(size, length, flat, padded):
    made = micro_batch(size, length, flat=flat, padded=padded, share=0.5)
    assert made.labelled == 0.5
    assert min(made.lengths) >= 1
    one = worst(made.lengths, flat=flat)
    assert one.size == size
    if not flat:
        assert max(made.lengths) == length
        assert one.padded == (padded and size > 1 and length > 1)


WANTED = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 5000)), min_size=1, max_size=12)
SMALLEST = st.one_of(st.integers(1, 40), st.integers(1, 400))


@given(WANTED, st.booleans(), SMALLEST)
@example([6, 7, 8, 9], False, 7)
def test_every_size_is_traced_or_can_be_scaled_to(wanted, flat, smallest):
    direct, known = sizes_to_trace(wanted, flat=flat, smallest_with_chunks=smallest)
    assert set(direct) <= set(wanted)
    assert len(known) in ((0, 3) if flat else (0, 2))
    rest = set(wanted) - set(direct)
    assert not rest or known
    assert all(size >= smallest for size in known)
    assert all(size >= min(known) for size in rest)
    assert flat or 1 not in {*rest, *known}  # one row alone is like no others


@given(WANTED, st.booleans(), SMALLEST)
def test_scaling_never_costs_more_traces_than_it_saves(wanted, flat, smallest):
    direct, known = sizes_to_trace(wanted, flat=flat, smallest_with_chunks=smallest)
    assert len(set(direct)) == len(direct)
    assert len(direct) + len(known) <= len(set(wanted))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.booleans(), st.integers(1, 400))
def test_the_order_of_sizes_and_repeats_do_not_matter(wanted, flat, smallest):
    asked = {"flat": flat, "smallest_with_chunks": smallest}
    assert sizes_to_trace(wanted, **asked) == sizes_to_trace([*wanted[::-1], wanted[0]], **asked)


@given(st.integers(2, 4000), st.sampled_from([128, 256]))
def test_the_smallest_size_of_padded_rows_has_chunks_enough(length, rows_per_chunk):
    size = smallest_with_chunks(length - 1, rows_per_chunk, flat=False)
    made = micro_batch(size, length, flat=False, padded=True, share=1.0)
    assert chunks_of(worst(made.lengths), "nll", rows_per_chunk) > CHUNKS
    # Not one row more than is needed, but for the one in reserve.
    fewer = worst((length,) * max(size - 2, 1))
    assert size <= 2 or chunks_of(fewer, "nll", rows_per_chunk) <= CHUNKS


@given(st.sampled_from([128, 256]))
def test_the_smallest_size_of_flat_rows_has_chunks_enough_and_is_round(rows_per_chunk):
    size = smallest_with_chunks(1.0, rows_per_chunk, flat=True)
    assert size % 128 == 0
    made = micro_batch(size, 999, flat=True, padded=False, share=1.0)
    assert chunks_of(worst(made.lengths, flat=True), "nll", rows_per_chunk) > CHUNKS


@given(st.integers(10, 2000), st.floats(0.01, 1.0), st.sampled_from([128, 256]))
def test_rows_of_which_little_counts_need_more_rows(length, share, rows_per_chunk):
    counted = max(round(length * share), 1)
    assume(counted < length)
    size = smallest_with_chunks(counted, rows_per_chunk, flat=False)
    labelled = worst((length,) * size, labelled=size * counted)
    assert chunks_of(labelled, "chunked_nll", rows_per_chunk) > CHUNKS


# -- sizes met


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=60))
def test_a_histogram_counts_every_micro_batch_once(sizes):
    found = histogram(sizes)
    assert sum(count for *_, count in found) == len(sizes)
    assert [(tokens, padded) for tokens, padded, _ in found] == sorted(set(sizes))
    assert all(sizes.count((tokens, padded)) == count for tokens, padded, count in found)
