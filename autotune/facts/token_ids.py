"""Whether tokenized rows can be trained on: none of them empty, a label for each token, every id
one of the model's.

A probe would crash on them, on a GPU with no word of the row. Runs in a child only.
"""

from typing import Any

from autotune.errors import user_error
from autotune.job.methods import METHODS

_IGNORED = -100
"""A label that does not count."""


def check_tokens(method: str, rows: Any, vocabulary: int | None, *, sampled: bool) -> None:
    """Hold tokenized rows against the model's vocabulary.

    Args:
        rows: with their `lengths`.
        vocabulary: of the model; None: not known.
        sampled: whether they are in another order than the data's, so that numbers say nothing.

    Raises:
        UserError: a row that is empty, that has more or fewer labels than tokens, or that has an
            id beyond the vocabulary.
    """
    table = rows.with_format("arrow")[:]
    for number, lengths in enumerate(table.column("lengths").to_pylist()):
        if 0 in lengths:
            raise user_error(
                f"{_named(number, sampled)} has no tokens",
                where="dataset",
                hint="take it out, or write something into it",
            )
    if "labels" in METHODS[method].columns:
        _check_labels(table.column("input_ids"), table.column("labels"), sampled)
    if vocabulary is None:
        return
    for name in METHODS[method].columns:
        if name == "labels" or name.endswith("_ids"):
            _check_ids(name, table.column(name), vocabulary, sampled)


def _check_labels(ids: Any, labels: Any, sampled: bool) -> None:
    import pyarrow.compute

    tokens, labelled = (pyarrow.compute.list_value_length(column) for column in (ids, labels))
    number = pyarrow.compute.index(pyarrow.compute.not_equal(tokens, labelled), True).as_py()
    if number >= 0:
        raise user_error(
            f"{_named(number, sampled)} has {tokens[number]} `input_ids` and {labelled[number]} "
            "`labels`",
            where="dataset",
            hint=f"give each token a label, {_IGNORED} where it does not count",
        )


def _named(number: int, sampled: bool) -> str:
    return "a row" if sampled else f"row {number} (counted from 0)"


def _check_ids(name: str, column: Any, vocabulary: int, sampled: bool) -> None:
    import pyarrow.compute

    ids = pyarrow.compute.list_flatten(column)
    if name == "labels":
        ids = ids.filter(pyarrow.compute.not_equal(ids, _IGNORED))
    found = pyarrow.compute.min_max(ids).as_py()
    if found["max"] is None or 0 <= found["min"] <= found["max"] < vocabulary:
        return
    wrong = found["max"] if found["max"] >= vocabulary else found["min"]
    number = next(n for n, row in enumerate(column) if wrong in (row.as_py() or ()))
    raise user_error(
        f"`{name}` of {_named(number, sampled)} has the token {wrong}, and the model knows 0 to "
        f"{vocabulary - 1}",
        where="dataset",
        hint="they were tokenized for another model, or its tokenizer is of another one",
    )
