"""What the data make of the points of one variant: their micro-batches. Runs in a child only."""

from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.variants.sizes import Worst
from autotune.training.batch_plan import Batching, Plan, Rows, batch_size, plan, sequence_lengths

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
        self._rows = Rows(request.rows, request.method)
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
