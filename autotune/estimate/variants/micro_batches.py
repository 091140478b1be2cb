"""The micro-batches of a variant's points, and those that are traced so that every other follows.

The measure of a micro-batch is its rows, all padded to one length; or its tokens, where rows are
laid one behind the other. A few small measures are traced; the others are scaled from them. Runs in
a child only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.estimate.protocol import EstimateRequest, MicroBatch, Point
from autotune.estimate.records.layers import CHUNKS
from autotune.training.batch_plan import Batching, Plan, Rows, batch_size, plan, sequence_lengths

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
        """True if some rows are shorter than the longest."""
        return not self.flat and len(set(self.lengths)) > 1


@dataclass(frozen=True, kw_only=True)
class LossChunks:
    """The chunks in which TRL computes its loss, or the entropy beside it.

    Attributes:
        rows: positions of a chunk.
        labelled_only: whether only labelled tokens are gone over; else all positions that have a
            next one.
    """

    rows: int
    labelled_only: bool


def chunk_count(worst: Worst, chunks: LossChunks) -> int:
    """Return the chunks in which TRL computes a loss (or the entropy beside it) of this
    micro-batch."""
    if chunks.labelled_only:
        positions = worst.labelled
    elif worst.flat:
        positions = sum(worst.lengths) - 1
    else:
        positions = len(worst.lengths) * (max(worst.lengths) - 1)
    return max(-(-positions // chunks.rows), 1)


def micro_batch(size: int, length: int, *, flat: bool, padded: bool, share: float) -> MicroBatch:
    """Return a micro-batch of this measure to trace; no row of it is longer than `length`."""
    if flat:
        rows = max(min(FLAT_ROWS, size), -(-size // length))
        lengths = [size // rows + (n < size % rows) for n in range(rows)]
        return MicroBatch(lengths=tuple(lengths), labelled=share)
    shorter_length = max(length - 1, 1) if padded else length
    return MicroBatch(lengths=(length, *[shorter_length] * (size - 1)), labelled=share)


@dataclass(frozen=True, kw_only=True)
class TracedSizes:
    """The sizes of micro-batches that are traced: some as they are, from others the rest follows.

    Attributes:
        direct: those that are traced as they are.
        families: (the largest size that follows, None: any; the sizes it follows from), in order.
    """

    direct: tuple[int, ...]
    families: tuple[tuple[int | None, tuple[int, ...]], ...] = ()

    @property
    def every(self) -> list[int]:
        """All sizes to trace, each once."""
        sizes = [*self.direct, *(size for _, measures in self.families for size in measures)]
        return list(dict.fromkeys(sizes))

    def measures(self, size: int) -> list[int]:
        """Return the traced sizes that `size` follows from: itself, where it is traced."""
        if size in self.direct:
            return [size]
        return next(
            list(measures) for most, measures in self.families if most is None or size <= most
        )

    @property
    def smallest_scaled(self) -> int:
        """The smallest size that others follow from; where none do, the smallest."""
        return self.families[0][1][0] if self.families else self.direct[0]


def sizes_to_trace(
    wanted_sizes: Iterable[int],
    *,
    flat: bool,
    smallest_with_chunks: int,
    most_unsorted: int | None = None,
    linear: bool = False,
    multiple: int = 1,
) -> TracedSizes:
    """Return the fewest sizes from which each wanted one follows.

    Args:
        multiple: of which each size is one: sequences come in pairs.
        linear: whether flat rows have no mask of tokens x tokens: their kernels need none.
        smallest_with_chunks: the smallest size whose loss has enough chunks to be resized.
        most_unsorted: the largest size whose kernels are others than those of larger sizes; None:
            there is none such.
    """
    sizes = sorted(set(wanted_sizes))
    low = max(smallest_with_chunks, 1 if flat else 2)
    if most_unsorted is None or sizes[0] > most_unsorted:
        least = 0 if most_unsorted is None else _above(most_unsorted, multiple, flat=flat)
        first = max(low, least)
        return _family(sizes, first, None, flat=flat, linear=linear)
    unsorted = [n for n in sizes if n <= most_unsorted]
    below = _family(unsorted, low, most_unsorted, flat=flat, linear=linear)
    larger = [n for n in sizes if n > most_unsorted]
    if not larger:
        return below
    first = max(low, _above(most_unsorted, multiple, flat=flat))
    above = _family(larger, first, None, flat=flat, linear=linear, others=len(below.every))
    return TracedSizes(direct=below.direct + above.direct, families=below.families + above.families)


def _above(size: int, multiple: int, *, flat: bool) -> int:
    step = 128 if flat else multiple
    return (size // step + 1) * step


def _family(
    sizes: list[int], low: int, most: int | None, *, flat: bool, linear: bool, others: int = 0
) -> TracedSizes:
    """Return what is traced of sizes up to `most`. Speeds need a third size, of which `others` may
    be."""
    direct = [size for size in sizes if size < low or (size == 1 and not flat)]
    scaled = [size for size in sizes if size not in direct]
    few = not flat or (linear and len(direct) + others > 0)
    measures = (low, 2 * low) if few else (low, 2 * low, 3 * low)
    if len(scaled) < (3 if flat else 2) or (most is not None and measures[-1] > most):
        return TracedSizes(direct=tuple(sizes))
    return TracedSizes(direct=tuple(direct), families=((most, measures),))


def smallest_with_chunks(per_size: float, rows_per_chunk: int, *, flat: bool) -> int:
    """Return the smallest size with enough chunks and something over, where each unit has
    `per_size`."""
    tokens = CHUNKS.smallest * rows_per_chunk + 1
    size = int(-(-tokens // max(per_size, 1e-9))) + 1
    return -(-size // 128) * 128 if flat else size


def histogram(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (tokens, padded tokens, count) of micro-batches, in order of size."""
    counts: dict[tuple[int, int], int] = {}
    for size in sizes:
        counts[size] = counts.get(size, 0) + 1
    return [(tokens, padded, count) for (tokens, padded), count in sorted(counts.items())]


ORDER_SIGMA = 0.04
"""How far reserved bytes on fixed segments are off where rows are of many lengths: root mean square
of the errors of 42 combinations on virtual GPUs, -9.5% to +8.5% (`benchmarks/virtual_gpu`); where
rows are even, or segments grow, it is 0.7 to 2.2%."""
EVEN = 0.99
"""Micro-batches that are no smaller than this share of the largest leave the same blocks."""


class VariantData:
    """The micro-batches of the points of a variant, each planned once."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request
        self._rows = Rows(request.rows, request.method, request.row_parts)
        self._plans: dict[str, Plan] = {}

    def plan(self, point: Point) -> Plan:
        """Return the micro-batches that a probe of this point would see."""
        key = repr(sorted(point.batching.items()))
        if key not in self._plans:
            self._plans[key] = plan(
                self._rows,
                Batching(**point.batching),
                self._request.rows_total,
                sampled=self._request.rows_sampled,
            )
        return self._plans[key]

    def worst(self, point: Point) -> Worst:
        """Return the micro-batch that takes most memory."""
        batching = Batching(**point.batching)
        rows = self.plan(point).worst
        lengths = sequence_lengths(rows, batching)
        multiple = batching.pad_to_multiple_of or 1
        if not batching.flat:
            longest = lengths.index(max(lengths))
            lengths[longest] = -(-lengths[longest] // multiple) * multiple
        labelled = sum(batching.kind.labelled(row, batching.cut_to) for row in rows)
        return Worst(lengths=tuple(lengths), labelled=labelled, flat=batching.flat)

    def first_shares(self, point: Point) -> tuple[float, ...]:
        """Return how large the micro-batches of a probe's first optimizer step are, as shares of
        the worst (tokens with padding; where a step has several, of the first two); none: all are
        as large.

        A launch may begin with other ones, and what is reserved depends on that: plans replay these
        and a step of the worst. None for flat rows: not compared with the real allocator.
        """
        batching, plan = Batching(**point.batching), self.plan(point)
        _, largest = batch_size(plan.worst, batching)
        first = plan.timed[: 2 if point.accumulates else 1]
        shares = tuple(batch_size(rows, batching)[1] / largest for rows in first)
        return shares if min(shares) < 1 and not batching.flat else ()

    def order_sigma(self, point: Point) -> float:
        """Return how far reserved bytes are off because another order of the rows leaves other
        blocks, relative: `ORDER_SIGMA` where micro-batches differ and segments do not grow. (Of
        flat rows it has not been measured.)"""
        fixed_segments = self._request.cuda is not None and not point.expandable_segments
        sizes = [padded for _, padded in self.plan(point).sample]
        return ORDER_SIGMA if fixed_segments and min(sizes) < EVEN * max(sizes) else 0.0

    def padded(self, point: Point) -> bool:
        """True if some of its micro-batches are padded."""
        return any(tokens != padded for tokens, padded in self.plan(point).sample)
