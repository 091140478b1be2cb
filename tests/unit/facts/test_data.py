import json
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.facts.data import copy_splits, draw_lengths, load_splits, rename_columns
from autotune.facts.tokenizing import check_rows, check_tokens

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


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, rows: int, name: str = "train.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": f"row {number}"}) for number in range(rows)]
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "other"), [("run[1]", "run1"), ("a?b", "axb"), ("c*", "cd")])
def test_a_name_that_is_a_pattern_reads_no_other_data(data: Path, name: str, other: str) -> None:
    write(data / other, 50)
    folder = write(data / name, 30)
    with pytest.raises(UserError, match=f"leads to .*{other}/train.jsonl, which is not the data"):
        load_splits(str(folder), None)
    assert len(load_splits(str(data / other), None)["train"]) == 50


@pytest.mark.parametrize("name", ["a::b.jsonl", "new\nline.jsonl", "a$V.jsonl"])
def test_a_file_that_its_reader_would_pass_over_is_refused(data: Path, name: str) -> None:
    write(write(data / "two", 3), 5, name)
    with pytest.raises(UserError, match="which is not the data set"):
        load_splits(str(data / "two"), None)


@pytest.mark.parametrize("name", ["json", "text"])
def test_the_name_of_a_reader_is_no_data_set(data: Path, name: str) -> None:
    write(data, 3)
    (data / "x.txt").write_text("secret", encoding="utf-8")
    with pytest.raises(UserError, match=f"`{name}` leads to "):
        load_splits(name, None)


def test_a_link_to_data_is_followed(data: Path) -> None:
    folder = write(data / "real[1]", 4)
    (data / "link").mkdir()
    (data / "link" / "train.jsonl").symlink_to(folder / "train.jsonl")
    assert len(load_splits(str(data / "link"), None)["train"]) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\0\0", "Expecting value"),
        ("\ufeff{}".encode(), "Unexpected UTF-8 BOM"),
        (b'{"text": "a', "Unterminated string"),
        (b"[1, 2]", "it holds a list"),
        (b'{"text": "a", "text": "b"}', "specified twice in row 5"),
    ],
)
def test_data_that_cannot_be_read_are_named_with_the_line(
    data: Path, line: bytes, said: str
) -> None:
    file = write(data / "data", 5) / "train.jsonl"
    file.write_bytes(file.read_bytes() + b"\n" + line + b"\n")
    with pytest.raises((UserError, ValueError), match=said) as error:
        load_splits(str(file.parent), None)
    where = (
        f"{file}:6: cannot be read as a row" if said[:3] != "spe" else "the data cannot be read: "
    )
    assert str(error.value).startswith(where)


TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("method", "rows", "said"),
    [
        ("sft", [{"text": "a"}, {"text": ["a"]}], "the `text` of row 1 is neither text nor"),
        ("sft", [{"prompt": 5, "completion": 6}], "the `completion` of row 0 is neither"),
        ("sft", [{"messages": [TURN]}, {"messages": []}], "the `messages` of row 1 is neither"),
        ("dpo", [{"chosen": "a", "rejected": 5}], "the `rejected` of row 0 is neither text nor"),
        ("grpo", [{"prompt": ""}], "every `prompt` is empty"),
    ],
)
def test_rows_of_another_type_are_named(method: str, rows: list[dict], said: str) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    held = type("Rows", (), {"column_names": list(columns), "__getitem__": lambda _, n: columns[n]})
    with pytest.raises(ValueError, match=said):
        check_rows(method, held(), "text")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": [1, 2], "labels": [-100, -100]}, "no token counts in the loss"),
        ({"input_ids": [1.5, 2.0], "labels": [1, 2]}, "tokens are whole numbers, but these are do"),
        ({"input_ids": [1, 2], "labels": [1.5, 2.0]}, "tokens are whole numbers, but these are do"),
    ],
)
def test_rows_that_train_nothing_are_refused(row: dict, said: str) -> None:
    rows = datasets.Dataset.from_list([{**row, "lengths": [2]}] * 3)
    with pytest.raises(UserError, match=said):
        check_tokens("sft", rows, 64, sampled=False)
