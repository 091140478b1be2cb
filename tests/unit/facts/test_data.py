from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.facts.data import copy_splits, draw_lengths, load_splits, rename_columns

ASKED = (
    st.lists(st.integers(1, 5000), min_size=3, max_size=3)
    .map(sorted)
    .map(lambda three: dict(zip(("p50", "p99", "max"), three, strict=True)))
)


@given(ASKED, st.integers(1, 300))
def test_lengths_are_ascending_and_within_bounds(lengths, count):
    rows = draw_lengths(lengths, count)
    assert len(rows) == count
    assert rows == sorted(rows)
    assert rows[0] >= 1
    assert rows[-1] == lengths["max"]


@given(ASKED)
def test_the_quantiles_are_as_asked(lengths):
    rows = draw_lengths(lengths, 201)
    assert rows[100] == lengths["p50"]
    assert rows[198] == lengths["p99"]


@pytest.mark.parametrize("p99", [None, 5])
def test_of_max_alone_every_row_is_max_long(p99):
    assert draw_lengths({"max": 7, "p50": None, "p99": p99}, 4) == [7, 7, 7, 7]


def test_a_missing_p99_lies_geometrically_between_median_and_max():
    rows = draw_lengths({"max": 1600, "p50": 100, "p99": None}, 201)
    assert rows[198] == 400


def test_short_rows_mirror_the_long_ones():
    rows = draw_lengths({"max": 1000, "p50": 100, "p99": 500}, 201)
    assert rows[2] == 20
    assert rows[0] == 10


def test_a_single_row_is_the_longest():
    assert draw_lengths({"max": 1000, "p50": 100, "p99": 500}, 1) == [1000]


ROW = {"instruction": "say hi", "output": "hi", "turns": [{"role": "user", "content": "hi"}]}


def splits(*names: str) -> dict[str, datasets.Dataset]:
    return {name: datasets.Dataset.from_list([ROW] * 3) for name in names}


def refused(columns: dict[str, str]) -> str:
    with pytest.raises(UserError) as error:
        rename_columns(splits("train"), columns)
    return str(error.value)


def test_columns_get_the_names_that_trl_knows() -> None:
    renamed = rename_columns(splits("train"), {"prompt": "instruction", "completion": "output"})
    assert renamed["train"][0] == {"prompt": "say hi", "completion": "hi", "turns": ROW["turns"]}


def test_names_can_be_swapped() -> None:
    swapped = rename_columns(splits("train"), {"output": "instruction", "instruction": "output"})
    assert (swapped["train"][0]["output"], swapped["train"][0]["instruction"]) == ("say hi", "hi")


def test_a_column_that_is_not_there_is_named_with_the_nearest_one() -> None:
    message = refused({"prompt": "instructions"})
    assert "the split `train` has no column `instructions`; it has instruction, output" in message
    assert "hint: did you mean `instruction`?" in message


def test_a_name_that_is_taken_is_refused() -> None:
    message = refused({"output": "instruction"})
    assert "the split `train` has a column `output` of its own" in message


def test_the_copy_is_read_back_whole_whatever_its_splits_are_called(tmp_path: Path) -> None:
    folder = copy_splits(splits("train_sft", "heldout"), tmp_path / "a 0 ü")
    copied = load_splits(folder, None)
    assert {name: rows.to_list() for name, rows in copied.items()} == {
        "train_sft": [ROW] * 3,
        "heldout": [ROW] * 3,
    }
