"""The rows of a trainer's data: how long they are, and which of them a probe trains on."""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import Sampler

from autotune.script.protocol import CHARACTERS, TOKENS
from autotune.training.batch_plan import (
    MEGA_BATCH,
    MIN_TIMED,
    SAMPLE_ROWS,
    spread_over_lengths,
    timed_indices,
)

LOOKED_AT = 2000
"""Rows whose length is looked up one by one, where no column tells it."""
LOOKING_S = 20.0


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """Lengths of rows: `indices` of those that were looked at, or of all.

    Attributes:
        unit: `tokens`, or `characters` where the rows are text.
        known: whether they were found; else each counts 1.
    """

    indices: Sequence[int]
    lengths: Sequence[int]
    unit: str
    known: bool = True


def row_lengths(dataset: Any) -> RowLengths | None:
    """Return how long the rows of a data set are, as its trainer has it; None: a stream."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return None
    count = len(dataset)
    by_column = _of_columns(dataset)
    if by_column is not None:
        lengths, unit = by_column
        return RowLengths(indices=range(count), lengths=lengths, unit=unit)
    step = max(count // LOOKED_AT, 1)
    indices, lengths = [], []
    began = time.monotonic()
    for index in range(0, count, step):
        size = _size(dataset[index])
        if size is None or time.monotonic() - began > LOOKING_S:
            break
        indices.append(index)
        lengths.append(size)
    if not indices:
        return RowLengths(indices=range(count), lengths=[1] * count, unit=TOKENS, known=False)
    return RowLengths(indices=indices, lengths=lengths, unit=TOKENS)


def _size(row: Any) -> int | None:
    """Return tokens of a row; None where it holds none."""
    if not hasattr(row, "keys"):
        return None
    names = [name for name in row if name == "input_ids"] or [n for n in row if n.endswith("_ids")]
    sizes = [
        int(row[n].shape[-1]) if hasattr(row[n], "shape") else len(row[n])
        for n in names
        if hasattr(row[n], "__len__") and not isinstance(row[n], str)
    ]
    return sum(sizes) if sizes else None


def _of_columns(dataset: Any) -> tuple[list[int], str] | None:
    """Return lengths by the columns of a `datasets.Dataset`; None: it is another, or makes rows
    anew."""
    features = getattr(dataset, "features", None)
    if not isinstance(features, dict) or getattr(dataset, "format", {}).get("type") == "custom":
        return None
    types = {name: str(dataset.data.schema.field(name).type) for name in features}
    lists = [name for name, kind in types.items() if kind.startswith(("list", "large_list"))]
    ids = [n for n in lists if n == "input_ids"] or [n for n in lists if n.endswith("_ids")]
    texts = [name for name, kind in types.items() if kind in ("string", "large_string")]
    if ids:
        return _summed(dataset, ids, "list_value_length"), TOKENS
    messages = [n for n in lists if n in ("messages", "prompt", "chosen", "rejected")]
    if messages:
        rows = zip(*(dataset[name] for name in messages), strict=True)
        return [sum(len(str(part)) for part in row) for row in rows], CHARACTERS
    return (_summed(dataset, texts, "utf8_length"), CHARACTERS) if texts else None


def _summed(dataset: Any, names: list[str], function: str) -> list[int]:
    import pyarrow.compute as pc

    lengths: list[int] = []
    table = dataset.select_columns(names).with_format("arrow")
    for batch in table.iter(batch_size=10_000):
        columns = [pc.call_function(function, [batch[name]]).to_pylist() for name in names]
        lengths += [sum(size or 0 for size in row) for row in zip(*columns, strict=True)]
    return lengths


@dataclass(kw_only=True)
class RowPlan:
    """The micro-batches of a probe, as indices of rows, and what was seen of their sizes.

    Attributes:
        timed: those that are timed, over and over.
        worst: the longest rows together.
        expected: (length, length with padding) of each micro-batch of the sample; empty: not known.
        expected_timed: of those that are timed.
        epoch: length of all rows once; None: not known.
    """

    timed: list[list[int]]
    worst: list[int]
    expected: list[tuple[int, int]]
    expected_timed: list[tuple[int, int]]
    epoch: float | None
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, position: int, tokens: int, padded: int) -> None:
        """Note the tokens of a micro-batch, without and with padding."""
        if position >= 0:
            self._seen[position] = (tokens, padded)

    def take_rows_as_they_come(self) -> None:
        """Somebody else chooses the rows: of the data only what is seen is known."""
        self.expected, self.expected_timed, self.epoch = [], [], None

    def _scale(self, part: int) -> float:
        """Return tokens for each unit of length, as seen."""
        expected = sum(self.expected_timed[n][part] for n in self._seen)
        return sum(size[part] for size in self._seen.values()) / max(expected, 1)

    @property
    def sample(self) -> list[tuple[float, float]]:
        """(tokens, tokens with padding) of every micro-batch of the sample."""
        if not self.expected:
            return [(float(tokens), float(padded)) for tokens, padded in self._seen.values()]
        tokens, padded = self._scale(0), self._scale(1)
        return [(tokens * size, padded * full) for size, full in self.expected]

    @property
    def tokens_per_epoch(self) -> float | None:
        """Tokens of all rows once."""
        return None if self.epoch is None else self.epoch * self._scale(0)


def row_plan(
    rows: RowLengths | None, count: int, size: int, *, global_batch: int, grouped: bool, seed: int
) -> RowPlan:
    """Return the micro-batches of one probe.

    Args:
        rows: None: a stream, whose rows come as they come.
        count: rows of the data.
        size: rows of a micro-batch.
        global_batch: rows of an optimizer step.
        grouped: whether the trainer puts rows of like length together.
    """
    if rows is None:
        places: list[list[int]] = [[] for _ in range(MIN_TIMED)]
        return RowPlan(timed=places, worst=[], expected=[], expected_timed=[], epoch=None)
    sample = spread_over_lengths(rows.lengths, max(SAMPLE_ROWS, 2 * size))
    random.Random(seed).shuffle(sample)
    if grouped:
        mega = max(1, min(count // (global_batch * 4), MEGA_BATCH)) * global_batch
        parts = [sample[start : start + mega] for start in range(0, len(sample), mega)]
        sample = [n for part in parts for n in sorted(part, key=lambda n: -rows.lengths[n])]
    whole = len(sample) - len(sample) % size
    full = sample[:whole] or list(itertools.islice(itertools.cycle(sample), size))
    batches = [full[start : start + size] for start in range(0, len(full), size)]
    sizes = [_sizes(rows, batch) for batch in batches]
    chosen = timed_indices(sizes, size)
    longest = sorted(range(len(rows.lengths)), key=lambda n: (-rows.lengths[n], n))
    worst = list(itertools.islice(itertools.cycle(longest), size))
    return RowPlan(
        timed=[[rows.indices[n] for n in batches[index]] for index in chosen],
        worst=[rows.indices[n] for n in worst],
        expected=sizes,
        expected_timed=[sizes[index] for index in chosen],
        epoch=fmean(rows.lengths) * count,
    )


def _sizes(rows: RowLengths, batch: Sequence[int]) -> tuple[int, int]:
    lengths = [rows.lengths[n] for n in batch]
    return sum(lengths), max(lengths) * len(lengths)


class FixedOrder(Sampler[int]):
    """Rows in a given order. `used` tells whether a loader was made with them."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order, self.used = order, False

    def sampler(self, *_: Any, **__: Any) -> "FixedOrder":
        """Return this, for a trainer that makes its loader."""
        self.used = True
        return self

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def observed_size(inputs: Any) -> tuple[int, int]:
    """Return (tokens, tokens with padding) of a micro-batch as the collator formed it; rows where
    it holds no tokens."""
    tensors = {n: v for n, v in getattr(inputs, "items", dict)() if isinstance(v, torch.Tensor)}
    ids = [v for n, v in tensors.items() if n.endswith("input_ids")]
    masks = [v for n, v in tensors.items() if n.endswith("attention_mask") and v.dim() == 2]
    ids = ids or [v for n, v in tensors.items() if n in ("labels", "decoder_input_ids")]
    padded = sum(v.numel() for v in ids)
    if not padded:
        rows = max((len(v) for v in tensors.values() if v.dim()), default=len(inputs))
        return rows, rows
    tokens = sum(int(v.sum()) for v in masks)
    return (tokens, padded) if 0 < tokens <= padded else (padded, padded)
