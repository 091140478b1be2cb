"""Columns by TRL's names: renaming, its refusals, and the copy that is launched on."""

from pathlib import Path

import datasets
import pytest

from autotune.errors import UserError
from autotune.facts.data import copy_splits, load_splits, rename_columns

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
