"""Which micro-batches a variant has to be traced at, so that every candidate's follows. Pure.

The measure of a micro-batch is its rows, all padded to one length; or its tokens, where rows are
laid one behind the other. A few small measures are traced; the others are scaled from them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.estimate.protocol import MicroBatch
from autotune.estimate.records.shapes import CHUNKS

FLAT_ROWS = 4


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The micro-batch of a candidate that takes most memory.

    Attributes:
        lengths: tokens of each row.
        labelled: tokens that count in the loss.
        flat: whether the rows are laid one behind the other.
    """

    lengths: tuple[int, ...]
    labelled: int
    flat: bool

    @property
    def size(self) -> int:
        """Rows, or tokens where they are laid one behind the other."""
        return sum(self.lengths) if self.flat else len(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens with padding."""
        return sum(self.lengths) if self.flat else len(self.lengths) * max(self.lengths)

    @property
    def padded(self) -> bool:
        """Whether some rows are shorter than the longest."""
        return not self.flat and len(set(self.lengths)) > 1


@dataclass(frozen=True, kw_only=True)
class LossChunks:
    """How TRL divides its loss, or the entropy beside it.

    Attributes:
        rows: positions of a chunk.
        labelled_only: whether only labelled tokens are gone over; else all positions that have a
            next one.
    """

    rows: int
    labelled_only: bool


def chunk_count(worst: Worst, chunks: LossChunks) -> int:
    """Chunks in which TRL computes a loss (or the entropy beside it) of this micro-batch."""
    if chunks.labelled_only:
        positions = worst.labelled
    elif worst.flat:
        positions = sum(worst.lengths) - 1
    else:
        positions = len(worst.lengths) * (max(worst.lengths) - 1)
    return max(-(-positions // chunks.rows), 1)


def micro_batch(size: int, length: int, *, flat: bool, padded: bool, share: float) -> MicroBatch:
    """A micro-batch of this measure to trace."""
    if flat:
        rows = min(FLAT_ROWS, size)
        lengths = [size // rows + (n < size % rows) for n in range(rows)]
        return MicroBatch(lengths=tuple(lengths), labelled=share)
    shorter_length = max(length - 1, 1) if padded else length
    return MicroBatch(lengths=(length, *[shorter_length] * (size - 1)), labelled=share)


def sizes_to_trace(
    wanted_sizes: Iterable[int], *, flat: bool, smallest_with_chunks: int
) -> tuple[list[int], list[int]]:
    """(sizes traced as they are, sizes to scale from); each that is needed follows from either.

    Args:
        smallest_with_chunks: the smallest size whose loss has enough chunks to be resized.
    """
    sizes = sorted(set(wanted_sizes))
    low = max(smallest_with_chunks, 1 if flat else 2)
    direct = [size for size in sizes if size < low or (size == 1 and not flat)]
    scaled = [size for size in sizes if size not in direct]
    measures = [low, 2 * low, 3 * low] if flat else [low, 2 * low]
    if len(scaled) < len(measures):
        return direct + scaled, []
    return direct, measures


def smallest_with_chunks(per_size: float, rows_per_chunk: int, *, flat: bool) -> int:
    """The smallest size with `CHUNKS` chunks and something over, where each unit has `per_size`."""
    tokens = CHUNKS * rows_per_chunk + 1
    size = int(-(-tokens // max(per_size, 1e-9))) + 1
    return -(-size // 128) * 128 if flat else size


def histogram(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(tokens, padded tokens, how often) of micro-batches, in order of size."""
    counts: dict[tuple[int, int], int] = {}
    for size in sizes:
        counts[size] = counts.get(size, 0) + 1
    return [(tokens, padded, count) for (tokens, padded), count in sorted(counts.items())]
