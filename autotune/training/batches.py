"""Which rows a probe trains on: representative micro-batches, and the worst one.

Every candidate of a job sees the same sample of rows, spread evenly over the lengths. A candidate
forms its micro-batches of it as its own sampler would, and a few of them, spread evenly over their
sizes, are timed. The worst micro-batch is what a long enough run will meet: the longest rows of the
whole data together, or the fullest packed ones. Pure, but for `Rows`.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SAMPLE_ROWS = 256
TIMED_ROWS = 16
MIN_TIMED, MAX_TIMED = 4, 16
MEGA_BATCH = 50
"""Global batches that transformers' LengthGroupedSampler sorts together (at most)."""

Row = dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How a candidate makes micro-batches."""

    micro_batch: int
    global_batch: int
    max_length: int | None
    padding_free: bool
    packing: bool
    packing_strategy: str
    keep_end: bool
    grouped: bool
    pad_to_multiple_of: int | None
    seed: int

    @property
    def cut_to(self) -> int | None:
        """Length to which rows are cut; some ways of packing keep what is beyond it."""
        keeps_all = self.packing and self.packing_strategy != "bfd"
        return None if keeps_all else self.max_length

    @property
    def flat(self) -> bool:
        """Whether the collator lays the rows of a micro-batch one behind the other."""
        return self.padding_free or (self.packing and self.packing_strategy != "wrapped")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The micro-batches of one probe: `timed` and `worst` hold rows, `sample` only sizes.

    `sample` is (tokens, padded tokens) of every micro-batch of the sample.
    """

    timed: list[list[Row]]
    worst: list[Row]
    sample: list[tuple[int, int]]
    tokens_per_epoch: float
    """Real tokens of the whole data once, after truncation."""


def plan(rows: "Rows", batching: Batching, rows_total: int, *, sampled: bool) -> Plan:
    """The micro-batches of one probe.

    Args:
        rows: the tokenized rows measured.
        batching: how the candidate makes micro-batches.
        rows_total: rows of the whole data, of which `rows` may be a sample.
        sampled: whether longer rows than the longest measured may exist; then the worst
            micro-batch is made as long as `max_length` allows.
    """
    usable = rows.usable(batching.cut_to, batching.keep_end)
    if not usable:
        raise ValueError(
            f"no token is left to learn from once rows are cut to max_length={batching.max_length}"
        )
    lengths = [rows.lengths[index] for index in usable]
    chosen = spread_over_lengths(lengths, _sample_size(lengths, batching))
    sample = [cut(rows[usable[n]], batching.cut_to, batching.keep_end) for n in chosen]
    if batching.packing:
        sample = rows.pack(sample, batching)
    random.Random(batching.seed).shuffle(sample)
    if batching.grouped:
        sample = grouped_by_length(sample, batching.global_batch, rows_total)
    size = batching.micro_batch
    batches = [sample[start : start + size] for start in range(0, len(sample), size)]
    batches = [batch for batch in batches if len(batch) == size] or [_repeat(sample, size)]
    sizes = [batch_size(batch, batching) for batch in batches]
    return Plan(
        timed=[batches[index] for index in timed_indices(sizes, size)],
        worst=worst_micro_batch(rows, usable, batching, sampled=sampled),
        sample=sizes,
        tokens_per_epoch=rows_total
        * (len(usable) / len(rows.lengths))
        * _mean_cut_length(lengths, batching.cut_to),
    )


def _sample_size(lengths: Sequence[int], batching: Batching) -> int:
    """Rows to draw: enough that a few micro-batches come of them, packed or not."""
    wanted = max(SAMPLE_ROWS, 2 * batching.micro_batch)
    if batching.packing and batching.max_length is not None:
        tokens = MIN_TIMED * batching.micro_batch * batching.max_length
        wanted = max(wanted, math.ceil(tokens / _mean_cut_length(lengths, batching.cut_to)))
    return wanted


def _mean_cut_length(lengths: Sequence[int], max_length: int | None) -> float:
    cut_lengths = [min(n, max_length or n) for n in lengths]
    return sum(cut_lengths) / len(cut_lengths)


def spread_over_lengths(lengths: Sequence[int], count: int) -> list[int]:
    """Indices of `count` rows at even quantiles of the lengths (all rows where there are fewer)."""
    ranked = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    if len(ranked) <= count:
        return ranked
    return [ranked[int((n + 0.5) * len(ranked) / count)] for n in range(count)]


def cut(row: Row, max_length: int | None, keep_end: bool = False) -> Row:
    """A row truncated as SFTTrainer does it."""
    kept = slice(-max_length, None) if keep_end and max_length else slice(None, max_length)
    return {name: values[kept] for name, values in row.items()}


def grouped_by_length(sample: list[Row], global_batch: int, rows_total: int) -> list[Row]:
    """The order of transformers' LengthGroupedSampler: sorted inside mega-batches.

    The mega-batch of the whole data covers at least as much of a sample of it.
    """
    mega = max(1, min(rows_total // (global_batch * 4), MEGA_BATCH)) * global_batch
    ordered: list[Row] = []
    for start in range(0, len(sample), mega):
        part = sample[start : start + mega]
        ordered += sorted(part, key=lambda row: len(row["input_ids"]), reverse=True)
    return ordered


def batch_size(batch: Sequence[Row], batching: Batching) -> tuple[int, int]:
    """(tokens, tokens with padding) of a micro-batch as the collator forms it."""
    lengths = [len(row["input_ids"]) for row in batch]
    if batching.flat:
        padded, rows = sum(lengths), 1
    else:
        padded, rows = max(lengths), len(lengths)
    multiple = batching.pad_to_multiple_of or 1
    return sum(lengths), rows * (-(-padded // multiple) * multiple)


def timed_indices(sizes: Sequence[tuple[int, int]], micro_batch: int) -> list[int]:
    """Which micro-batches to time: at even quantiles of their padded size, enough for 16 rows."""
    wanted = min(MAX_TIMED, max(MIN_TIMED, -(-TIMED_ROWS // micro_batch)))
    ranked = sorted(range(len(sizes)), key=lambda index: (sizes[index][1], index))
    if len(ranked) <= wanted:
        return ranked
    return [ranked[int((n + 0.5) * len(ranked) / wanted)] for n in range(wanted)]


def worst_micro_batch(
    rows: "Rows", usable: Sequence[int], batching: Batching, *, sampled: bool
) -> list[Row]:
    """The micro-batch that takes most memory among all the data can form."""
    longest = sorted(usable, key=lambda index: (-rows.lengths[index], index))
    count = batching.micro_batch
    picked = [
        cut(rows[index], batching.cut_to, batching.keep_end)
        for index in longest[: max(count, SAMPLE_ROWS if batching.packing else count)]
    ]
    if batching.packing:
        picked = sorted(rows.pack(picked, batching), key=lambda row: -len(row["input_ids"]))
        picked = [_lengthen(row, batching.max_length) for row in picked]
    elif sampled:
        picked = [_lengthen(row, batching.max_length) for row in picked]
    return _repeat(picked, count)


def _repeat(rows: list[Row], count: int) -> list[Row]:
    return [rows[index % len(rows)] for index in range(count)]


def _lengthen(row: Row, length: int | None) -> Row:
    """The row repeated up to `length`: as long as an unseen row, or as full as a pack, can be."""
    have = len(row["input_ids"])
    if length is None or have >= length:
        return row
    times = -(-length // have)
    grown: Row = {
        name: (row[name] * times)[:length] for name in ("input_ids", "labels") if name in row
    }
    if "seq_lengths" in row:
        grown["seq_lengths"] = [*row["seq_lengths"], length - have]
    return grown


class Rows:
    """The run's tokenized rows, read from disk as needed."""

    def __init__(self, folder: str):
        from datasets import load_from_disk

        from autotune.facts.data import row_lengths

        dataset = load_from_disk(folder)
        self.lengths = row_lengths(dataset)
        self._first_label: list[int] = dataset["first_label"][:]
        self._dataset = dataset.select_columns(["input_ids", "labels"])

    def __getitem__(self, index: int) -> Row:
        row: Row = self._dataset[index]
        return row

    def usable(self, cut_to: int | None, keep_end: bool = False) -> list[int]:
        """Rows with something left to learn after the cut: TRL drops the others.

        The first token of a row is predicted by nothing, so a label on it alone does not count.
        """
        if cut_to is None or keep_end:
            cut_to = max(self.lengths, default=0)
        return [
            index
            for index, first in enumerate(self._first_label)
            if first < min(cut_to, self.lengths[index])
        ]

    def pack(self, rows: list[Row], batching: Batching) -> list[Row]:
        """The rows packed by TRL itself."""
        from datasets import Dataset
        from trl import pack_dataset

        packed = pack_dataset(
            Dataset.from_list(rows), batching.max_length, batching.packing_strategy
        )
        return [dict(row) for row in packed]


def as_dataset(batches: Sequence[Sequence[Row]]) -> Any:
    """The micro-batches one after the other, as a data set to be read in order."""
    from datasets import Dataset

    return Dataset.from_list([row for batch in batches for row in batch])
