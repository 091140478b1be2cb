"""What a tokenized row is to each trainer."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.row_formats import ROW_KINDS
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.training.registry import FAMILIES

PAIR = {"chosen_ids": [5] * 7, "rejected_ids": [6] * 4}
PROMPTED = {"prompt_ids": [4] * 3, **PAIR}
LABELLED = {"prompt_ids": [4] * 3, "completion_ids": [5] * 7, "label": True}
TEXT = {"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}


def test_every_method_has_rows_a_family_and_a_name_in_jobs():
    methods = get_args(Job.model_fields["method"].annotation)
    assert set(methods) == ROW_KINDS.keys() == METHODS.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("method", "row", "lengths", "first", "labelled", "labelled_of_5"),
    [
        ("sft", TEXT, [4], 2, 2, 2),
        ("reward", PAIR, [7, 4], 0, 11, 11),
        ("dpo", PROMPTED, [10, 7], 3, 11, 4),
        ("kto", LABELLED, [10], 3, 7, 2),
    ],
)
def test_what_is_counted_of_a_row(method, row, lengths, first, labelled, labelled_of_5):
    kind = ROW_KINDS[method]
    assert kind.lengths(row) == lengths
    assert kind.first_label(row) == first
    assert kind.labelled(row, None) == labelled
    assert kind.labelled(row, 5) == labelled_of_5


@pytest.mark.parametrize(
    ("method", "row", "cut_to", "is_kept"),
    [
        ("sft", TEXT, 2, False),
        ("sft", TEXT, 3, True),
        ("reward", PAIR, 6, False),
        ("reward", PAIR, 7, True),
        ("dpo", PROMPTED, 3, False),
        ("dpo", PROMPTED, 4, True),
        ("kto", LABELLED, 3, False),
        ("kto", LABELLED, 4, True),
    ],
)
def test_what_the_trainer_drops(method, row, cut_to, is_kept):
    kind = ROW_KINDS[method]
    lengths, first = kind.lengths(row), kind.first_label(row)
    assert kind.usable(lengths, first, cut_to, False) is is_kept
    assert kind.usable(lengths, first, None, False)


@given(
    st.sampled_from(sorted(METHODS)),
    st.lists(st.integers(2, 60), min_size=1, max_size=5),
    st.sampled_from([1.0, 0.5, 0.1]),
)
def test_rows_of_stated_lengths_have_them(method, half, labelled):
    kind = ROW_KINDS[method]
    lengths = [*half, *half] if METHODS[method].sequences == 2 else half
    rows = kind.of_lengths(lengths, labelled)
    assert len(rows) * METHODS[method].sequences == len(lengths)
    assert {name for row in rows for name in row} == set(METHODS[method].columns)
    assert sorted(n for row in rows for n in kind.lengths(row)) == sorted(lengths)


@given(st.sampled_from(sorted(METHODS)), st.integers(1, 40), st.integers(1, 80))
def test_a_longer_row_is_as_long_as_it_is_to_be_and_none_gets_shorter(
    method, length_before, length
):
    kind = ROW_KINDS[method]
    (row,) = kind.of_lengths([length_before] * METHODS[method].sequences, 0.5)
    longer_row = kind.lengthened(row, length)
    assert min(kind.lengths(longer_row)) == max(length_before, length)
    assert longer_row.keys() == row.keys()


def test_an_odd_number_of_sequences_is_no_pairs():
    with pytest.raises(ValueError, match="3 sequences"):
        ROW_KINDS["dpo"].of_lengths([4, 4, 4], 1.0)
