"""The rows that a probe trains on: representative micro-batches, and the worst one.

Every candidate of a job sees the same sample of rows, spread evenly over the lengths. A candidate
forms its micro-batches of it as its own sampler would, and a few of them, spread evenly over their
sizes, are timed. The worst micro-batch is what a long enough run will meet: the longest rows of the
whole data together, or the fullest packed ones. Pure, but for `Rows`.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.facts.row_formats import ROW_KINDS, Row, RowKind
from autotune.job.methods import METHODS

SAMPLE_ROWS = 256
TIMED_ROWS = 16
MIN_TIMED, MAX_TIMED = 4, 16
MEGA_BATCH = 50
"""Global batches that transformers' LengthGroupedSampler sorts together (at most)."""


@dataclass(frozen=True, kw_only=True)
class Batching:
    """A candidate's rules for micro-batches. `max_length` counts the tokens of a sequence."""

    method: str
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
    def kind(self) -> RowKind:
        """The kind of row that the trainer takes."""
        return ROW_KINDS[self.method]

    @property
    def cut_to(self) -> int | None:
        """Length to which rows are cut; None: some ways of packing keep the rest."""
        keeps_all = self.packing and self.packing_strategy != "bfd"
        return None if keeps_all else self.max_length

    @property
    def flat(self) -> bool:
        """True if the collator lays the rows of a micro-batch one behind the other."""
        return self.padding_free or (self.packing and self.packing_strategy != "wrapped")


def batching_of(
    method: str, config: Mapping[str, Any], *, global_batch: int, seed: int
) -> Batching:
    """Return how the trainer of a flat configuration makes micro-batches."""
    multiple = config.get("pad_to_multiple_of")
    return Batching(
        method=method,
        micro_batch=config["per_device_train_batch_size"],
        global_batch=global_batch,
        max_length=config.get("max_length"),
        padding_free=bool(config.get("padding_free")),
        packing=bool(config.get("packing")),
        packing_strategy=config.get("packing_strategy", "bfd"),
        keep_end=config.get("truncation_mode") == "keep_end",
        grouped=config.get("train_sampling_strategy") == "group_by_length",
        # TRL's own default from 1.16 on: no padding on CPUs and GPUs.
        pad_to_multiple_of=None if multiple == "auto" else multiple,
        seed=seed,
    )


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
    """Return the micro-batches of one probe.

    Args:
        rows: the tokenized rows measured.
        batching: how the candidate makes micro-batches.
        rows_total: rows of the whole data, of which `rows` may be a sample.
        sampled: whether longer rows than the longest measured may exist; then the worst
            micro-batch is made as long as `max_length` allows.
    """
    usable = rows.usable(batching)
    if not usable:
        raise ValueError(
            f"no token is left to learn from once rows are cut to max_length={batching.max_length}"
        )
    lengths = [rows.longest[index] for index in usable]
    positions = spread_over_lengths(lengths, _sample_size(lengths, batching))
    sample = [_cut_row(rows[usable[n]], batching) for n in positions]
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
        * fmean(sum(cut_lengths(rows.lengths[index], batching.cut_to)) for index in usable),
    )


def _sample_size(lengths: Sequence[int], batching: Batching) -> int:
    """Return the number of rows to draw: enough for a few micro-batches, packed or not."""
    count = max(SAMPLE_ROWS, 2 * batching.micro_batch)
    if batching.packing and batching.max_length is not None:
        tokens = MIN_TIMED * batching.micro_batch * batching.max_length
        count = max(count, math.ceil(tokens / fmean(cut_lengths(lengths, batching.cut_to))))
    return count


def cut_lengths(lengths: Sequence[int], cut_to: int | None) -> list[int]:
    """Return the lengths after truncation."""
    return [min(length, cut_to or length) for length in lengths]


def spread_over_lengths(lengths: Sequence[int], count: int) -> list[int]:
    """Return indices of `count` rows at even quantiles of the lengths (all rows where there are
    fewer)."""
    ranked = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    if len(ranked) <= count:
        return ranked
    return [ranked[int((n + 0.5) * len(ranked) / count)] for n in range(count)]


def _cut_row(row: Row, batching: Batching) -> Row:
    return batching.kind.cut(row, batching.cut_to, batching.keep_end)


def sequence_lengths(batch: Sequence[Row], batching: Batching) -> list[int]:
    """Return tokens of each sequence that the collator makes of these rows."""
    lengths = [length for row in batch for length in batching.kind.lengths(row)]
    return cut_lengths(lengths, batching.cut_to)


def grouped_by_length(sample: list[Row], global_batch: int, rows_total: int) -> list[Row]:
    """Return the order of transformers' LengthGroupedSampler: sorted inside mega-batches.

    The mega-batch of the whole data covers at least as much of a sample of it.
    """
    mega = max(1, min(rows_total // (global_batch * 4), MEGA_BATCH)) * global_batch
    ordered: list[Row] = []
    for start in range(0, len(sample), mega):
        part = sample[start : start + mega]
        ordered += sorted(part, key=lambda row: len(row["input_ids"]), reverse=True)
    return ordered


def batch_size(batch: Sequence[Row], batching: Batching) -> tuple[int, int]:
    """Return (tokens, tokens with padding) of a micro-batch as the collator forms it."""
    lengths = sequence_lengths(batch, batching)
    if batching.flat:
        padded, rows = sum(lengths), 1
    else:
        padded, rows = max(lengths), len(lengths)
    multiple = batching.pad_to_multiple_of or 1
    return sum(lengths), rows * (-(-padded // multiple) * multiple)


def timed_indices(sizes: Sequence[tuple[int, int]], micro_batch: int) -> list[int]:
    """Return the micro-batches to time: at even quantiles of their padded size, enough for 16
    rows."""
    count = min(MAX_TIMED, max(MIN_TIMED, -(-TIMED_ROWS // micro_batch)))
    ranked = sorted(range(len(sizes)), key=lambda index: (sizes[index][1], index))
    if len(ranked) <= count:
        return ranked
    return [ranked[int((n + 0.5) * len(ranked) / count)] for n in range(count)]


def worst_micro_batch(
    rows: "Rows", usable: Sequence[int], batching: Batching, *, sampled: bool
) -> list[Row]:
    """Return the micro-batch that takes most memory among all the data can form."""
    longest = sorted(usable, key=lambda index: (-rows.longest[index], index))
    count = batching.micro_batch
    worst_rows = [
        _cut_row(rows[index], batching)
        for index in longest[: max(count, SAMPLE_ROWS if batching.packing else count)]
    ]
    if batching.packing:
        worst_rows = sorted(rows.pack(worst_rows, batching), key=lambda row: -len(row["input_ids"]))
        worst_rows = [_lengthen(row, batching) for row in worst_rows]
    elif sampled:
        worst_rows = [_lengthen(row, batching) for row in worst_rows]
    return _repeat(worst_rows, count)


def _repeat(rows: list[Row], count: int) -> list[Row]:
    return [rows[index % len(rows)] for index in range(count)]


def _lengthen(row: Row, batching: Batching) -> Row:
    """Return the row at the length that an unseen row, or a pack, can have."""
    if batching.max_length is None:
        return row
    return batching.kind.lengthened(row, batching.max_length)


class Rows:
    """The run's tokenized rows, read from disk as needed.

    Attributes:
        lengths: tokens of each sequence of each row, before truncation.
        longest: of these the longest of each row.

    Args:
        parts: processes that share a row: each row is the part of one of them.
    """

    def __init__(self, folder: str, method: str, parts: int = 1):
        from datasets import load_from_disk

        from autotune.facts.data import sequence_lengths

        dataset = load_from_disk(folder)
        self._parts = parts
        self.lengths = [[-(-n // parts) for n in row] for row in sequence_lengths(dataset)]
        self.longest = [max(lengths) for lengths in self.lengths]
        self._first_label: list[int] = dataset["first_label"][:]
        self._dataset = dataset.select_columns(list(METHODS[method].columns))
        self._rows: dict[int, Row] = {}

    def __getitem__(self, index: int) -> Row:
        """Return a row, read once: all ways to make micro-batches look at much the same rows."""
        if index not in self._rows:
            row = self._dataset[index]
            if self._parts > 1:
                row = {
                    name: column[: -(-len(column) // self._parts)] for name, column in row.items()
                }
            self._rows[index] = row
        return self._rows[index]

    def usable(self, batching: Batching) -> list[int]:
        """Return rows with something left to learn after the cut: TRL drops the others."""
        kind, cut_to = batching.kind, batching.cut_to
        return [
            index
            for index, first in enumerate(n // self._parts for n in self._first_label)
            if kind.usable(self.lengths[index], first, cut_to, batching.keep_end)
        ]

    def pack(self, rows: list[Row], batching: Batching) -> list[Row]:
        """Return the rows packed by TRL itself."""
        from datasets import Dataset
        from trl import pack_dataset

        packed = pack_dataset(
            Dataset.from_list(rows), batching.max_length, batching.packing_strategy
        )
        return [dict(row) for row in packed]


def raw_rows(rows: str) -> Any:
    """Return the untokenized rows beside the tokenized ones: online trainers tokenize as they go,
    and rewards may ask for any column."""
    from datasets import load_from_disk

    from autotune.facts.data import RAW

    return load_from_disk(str(Path(rows).with_name(RAW)))


def as_dataset(batches: Sequence[Sequence[Row]]) -> Any:
    """Return the micro-batches one after the other, as a data set to be read in order."""
    from datasets import Dataset

    return Dataset.from_list([row for batch in batches for row in batch])
