"""The speed of a variant's candidates, from its traced work and a device's ceilings. Pure.

Where completions are generated (`RolloutTime`), a step is its share of the rounds (a prompt's pass,
a decoding pass for each further token, the scoring), its micro-steps and the optimizer's step.
Prompts, scoring and update are traced at the longest prompts and shortened to those of the data in
proportion. Known error: the time of reward functions is not counted.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from operator import mul
from typing import Self

from autotune.estimate.protocol import EstimateReply, Point, PointReply, ShapeWork
from autotune.estimate.records.events import FLASH_PACKAGE, Work, work_from_plain
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.step_time import (
    TERMS,
    TimeParts,
    in_sequence,
    step_parts,
    tokens_per_s,
    with_copies,
    with_offloading,
    work_time,
)
from autotune.job.methods import METHODS
from autotune.training.rollout_plan import Rollout

Shape = tuple[int, int]
"""Rows and their padded length; rows laid one behind the other are one row."""


@dataclass(frozen=True, kw_only=True)
class ShapeTimes:
    """Times as curves over the shape.

    Each part is `a + b * tokens` with a, b >= 0, of parts that grow with scores
    `a + b * tokens + c * tokens * length` (least squares of the relative error), times a correction
    that makes it exact at the traced shapes and is interpolated between them. A part without scores
    is a curve over the tokens: nothing is concluded from its length, which the few traced shapes
    hardly vary. Known error: rates jump where kernels change, and a chunked loss grows by whole
    chunks.

    Attributes:
        points: times at the traced shapes.
        scores: the parts that grow with tokens * length.
    """

    points: Mapping[Shape, TimeParts]
    curves: Mapping[str, tuple[float, ...]]
    scores: frozenset[str] = frozenset(TERMS)

    @classmethod
    def fit(
        cls, points: Mapping[Shape, TimeParts], scores: frozenset[str] = frozenset(TERMS)
    ) -> Self:
        """Return the curves through the times at some shapes."""
        if not points:
            raise ValueError("no shape was traced")
        curves = {}
        for term in TERMS:
            values = [
                (_basis(shape, scores=term in scores), getattr(parts, term))
                for shape, parts in points.items()
            ]
            curves[term] = nonnegative_fit(values, first=0 if term == "overhead_s" else 1)
        return cls(points=dict(points), curves=curves, scores=scores)

    def at(self, rows: int, length: int) -> TimeParts:
        """Return the time at this shape."""
        shape = (rows, length)
        if shape in self.points:
            return self.points[shape]
        parts = {term: self._part(term, shape) for term in TERMS}
        overlapped = next(iter(self.points.values())).overlapped
        return TimeParts(**parts, overlapped=overlapped)

    def _part(self, term: str, shape: Shape) -> float:
        scores = term in self.scores
        if scores:
            correction = _weighted(self._log_ratios[term], shape)
        else:
            correction = _interpolated(*self._ratios_by_tokens[term], shape)
        curve: float = sum(map(mul, self.curves[term], _basis(shape, scores=scores)))
        return curve * math.exp(correction)

    @cached_property
    def _ratios_by_tokens(self) -> dict[str, tuple[list[float], list[float]]]:
        return {term: _by_tokens(ratios) for term, ratios in self._log_ratios.items()}

    @cached_property
    def _log_ratios(self) -> dict[str, dict[Shape, float]]:
        """log(time / curve) at each traced point, by term; only where both are above 0."""
        ratios: dict[str, dict[Shape, float]] = {}
        for term, curve in self.curves.items():
            pairs = {
                point: (
                    getattr(time, term),
                    sum(map(mul, curve, _basis(point, scores=term in self.scores))),
                )
                for point, time in self.points.items()
            }
            ratios[term] = {
                point: math.log(real / fit)
                for point, (real, fit) in pairs.items()
                if fit > 0 and real > 0
            }
        return ratios


def _weighted(values: Mapping[Shape, float], shape: Shape) -> float:
    """Return the mean of values at some shapes, the nearer ones more; 0 without any."""
    weights = {point: 1 / _distance(point, shape) for point in values}
    total = sum(weights.values())
    return sum(weights[point] * values[point] for point in values) / total if total else 0.0


def _by_tokens(values: Mapping[Shape, float]) -> tuple[list[float], list[float]]:
    """Return the logarithms of the tokens of some shapes, ascending, and the mean value at each."""
    at_place: dict[float, list[float]] = {}
    for (rows, length), value in values.items():
        at_place.setdefault(math.log(rows * length), []).append(value)
    places = sorted(at_place)
    return places, [sum(at_place[place]) / len(at_place[place]) for place in places]


def _interpolated(places: Sequence[float], values: Sequence[float], shape: Shape) -> float:
    """Return what values at some places come to at as many tokens as a shape has: linear in the
    tokens' logarithm, as at the nearest beyond them; 0 without any."""
    if not places:
        return 0.0
    at = math.log(shape[0] * shape[1])
    above = bisect_left(places, at)
    if above == 0 or above == len(places):
        return values[min(above, len(places) - 1)]
    low, high = values[above - 1], values[above]
    share = (at - places[above - 1]) / (places[above] - places[above - 1])
    return low + (high - low) * share


def _basis(shape: Shape, *, scores: bool) -> tuple[float, ...]:
    rows, length = shape
    terms = 1.0, float(rows * length), float(rows * length * length)
    return terms if scores else terms[:2]


def _distance(left: Shape, right: Shape) -> float:
    """Return the squared distance of two shapes, in doublings."""
    return sum(math.log2(a / b) ** 2 for a, b in zip(left, right, strict=True))


def nonnegative_fit(
    values: Sequence[tuple[Sequence[float], float]], *, first: int = 0
) -> tuple[float, ...]:
    """Return the c >= 0 with the least relative error of `c . x` to y, over (x, y), of all subsets.

    Where several fit alike, as they do with one value, that of `first` alone is taken.
    """
    width = len(values[0][0])
    order = sorted(range(width), key=lambda n: n != first)
    import numpy as np  # a plan's first line comes before any fit

    scaled = np.array([[x / y for x in xs] for xs, y in values if y > _NOTHING])
    best, least_error = (0.0,) * width, math.inf
    if not len(scaled):
        return best
    lengths = np.abs(scaled).max(axis=0)
    for count in range(1, width + 1):
        for columns in map(list, combinations(order, count)):
            if not lengths[columns].all():
                continue
            parts, ones = scaled[:, columns] / lengths[columns], np.ones(len(scaled))
            solution, _, rank, _ = np.linalg.lstsq(parts, ones, rcond=_SINGULAR)
            if rank < count or solution.min() < 0:
                continue
            error = float(((parts @ solution - ones) ** 2).sum())
            if error < least_error - _TIE:
                full = np.zeros(width)
                full[columns] = solution / lengths[columns]
                best, least_error = tuple(full.tolist()), error
    return best


_NOTHING = 1e-200
"""Seconds; what is less is nothing, and dividing by it would be too much."""
_SINGULAR = 1e-6
"""Smallest over largest singular value, below which a curve is not determined."""
_TIE = 1e-12
"""Squared relative error by which a curve with more terms has to be better."""


UNKNOWN_HOST_RATE = 2e10
"""Bytes/s between host and device where that is not known: PCIe 4.0 x16, less a fifth."""
ENOUGH_FOR_CURVES = 3
"""Fewer shapes give no curve; those of the other shapes are corrected by them."""
_Times = dict[bool, dict[tuple[int, int], TimeParts]]
"""Times of micro-steps by whether rows are padded, and by their shape."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The expected speed of a candidate. `parts` are of one optimizer step."""

    step_time_s: float
    tokens_per_s: float
    parts: TimeParts


class VariantSpeed:
    """Answers for the points of one variant."""

    def __init__(self, reply: EstimateReply, ceilings: Ceilings) -> None:
        self._reply, self._ceilings = reply, ceilings
        self._micro_step_times: dict[tuple[int, int, bool], TimeParts] = {}
        self._speeds: dict[str, Speed] = {}

    @cached_property
    def _shapes(self) -> dict[bool, ShapeTimes]:
        """Curves over the shape, by whether rows are padded; those of an engine are those of data
        parallelism, corrected by its own shapes."""
        times = self._times(self._reply.shapes)
        scores = growing_with_scores(self._reply.copied_shapes or self._reply.shapes)
        if not self._reply.copied_shapes:
            return _curves(times, scores)
        copied = _curves(self._times(self._reply.copied_shapes), scores)
        curve = next(iter(copied.values()))
        return {
            masked: replace(copied.get(masked, curve), points=points)
            for masked, points in times.items()
        }

    def _times(self, shapes: Sequence[ShapeWork]) -> _Times:
        times: _Times = {}
        for shape in shapes:
            masked = None if shape.flat else shape.masked
            time = work_time(works(shape), self._ceilings, masked=masked)
            times.setdefault(shape.masked, {})[shape.rows, shape.length] = time
        return times

    def at(self, rows: int, length: int, masked: bool) -> TimeParts:
        """Return one micro-step of `rows` rows padded to `length`."""
        key = (rows, length, masked)
        if key not in self._micro_step_times:
            curves = self._shapes.get(masked) or next(iter(self._shapes.values()))
            self._micro_step_times[key] = curves.at(rows, length)
        return self._micro_step_times[key]

    def _host_rate(self) -> float:
        return self._ceilings.host_bytes_per_s or UNKNOWN_HOST_RATE

    def optimizer(self, optim: str | None) -> TimeParts:
        """Return one optimizer step, clipping and all."""
        rows = self._reply.optimizer_work.get(optim or "") or self._reply.optimizer_work[""]
        return work_time(counted_work(rows), self._ceilings)

    def speed(
        self, point: Point, answer: PointReply, accumulation: int, *, offloaded_bytes: int = 0
    ) -> Speed:
        """Return what a candidate runs at, over the micro-batches that its sampler forms of the
        data.

        Args:
            offloaded_bytes: what its largest micro-batch copies to the host, and back.
        """
        key = repr((point.batching, point.optim, accumulation, offloaded_bytes))
        if key not in self._speeds:  # how memory is laid out makes other points, no other speed
            self._speeds[key] = self._speed(point, answer, accumulation, offloaded_bytes)
        return self._speeds[key]

    def _speed(self, point: Point, answer: PointReply, accumulation: int, offloaded: int) -> Speed:
        largest = max(padded for _, padded, _ in answer.sample)
        micro: Counter[TimeParts] = Counter()
        tokens: list[int] = []
        sequences = METHODS[point.batching["method"]].sequences
        rows = 1 if self._reply.shapes[0].flat else sequences * point.batching["micro_batch"]
        for real, padded, count in answer.sample:
            masked = rows > 1 and real != padded
            time = self.at(rows, padded // rows, masked)
            rate = largest / padded * self._host_rate()
            if answer.copied_bytes:
                time = with_copies(time, 2 * answer.copied_bytes / rate)
            elif offloaded:
                time = with_offloading(time, offloaded / rate)
            micro[time] += count
            tokens += [real] * count
        often = list(micro.values())
        parts = step_parts(list(micro), self.optimizer(point.optim), accumulation, often)
        step = parts.total
        return Speed(
            step_time_s=step, tokens_per_s=tokens_per_s(step, tokens, accumulation), parts=parts
        )


def growing_with_scores(shapes: Sequence[ShapeWork]) -> frozenset[str]:
    """Return the parts of a micro-step that grow with tokens * length: those in which scores are
    made.

    The package flash-attn has none outside its kernels; torch's kernels are given a mask of that
    size where rows are padded or flattened; eager attention makes them by matmuls.
    """
    attention = {
        work.operator for shape in shapes for work, _ in works(shape) if "attention" in work.kind
    }
    if not attention:
        return frozenset({"matmul_s", "memory_s", "attention_s"})
    flash = all(operator.startswith(FLASH_PACKAGE) for operator in attention)
    return frozenset({"attention_s"} if flash else {"attention_s", "memory_s"})


def _curves(times: _Times, scores: frozenset[str]) -> dict[bool, ShapeTimes]:
    richest = ShapeTimes.fit(max(times.values(), key=len), scores)
    return {
        masked: ShapeTimes.fit(points, scores)
        if len(points) >= ENOUGH_FOR_CURVES
        else replace(richest, points=points)
        for masked, points in times.items()
    }


def works(shape: ShapeWork) -> list[tuple[Work, int]]:
    """Return the work of a traced shape, each piece with how often it is done."""
    return counted_work(shape.work)


def counted_work(rows: Sequence[Sequence[object]]) -> list[tuple[Work, int]]:
    """Return the work of JSON rows, each piece with how often it is done."""
    return [(work_from_plain(row[:-1]), int(str(row[-1]))) for row in rows]


class RolloutTime:
    """Answers for the points of one variant."""

    def __init__(self, ceilings: Ceilings) -> None:
        self._ceilings = ceilings

    def _time(self, answer: PointReply, phase: str) -> TimeParts:
        assert answer.rollout is not None
        masked = None if phase in ("decode", "optimizer") else True
        return work_time(counted_work(answer.rollout[phase]), self._ceilings, masked=masked)

    def speed(
        self, point: Point, answer: PointReply, accumulation: int, *, offloaded_bytes: int = 0
    ) -> Speed:
        """Return what a candidate runs at, from the prompts that its rounds would have.

        Args:
            offloaded_bytes: nothing is offloaded by these trainers.
        """
        rollout, shorter = Rollout(**point.batching), answer.shorter
        ((tokens, _, _),) = answer.sample
        rounds = rollout.rounds / rollout.steps
        calls = rounds * rollout.generations
        parts = in_sequence(
            [
                self._time(answer, "prefill").times(calls * shorter),
                self._time(answer, "decode").times(calls * (rollout.length - 1)),
                self._time(answer, "scoring").times(rounds * shorter),
                self._time(answer, "judging").times(calls * shorter),
                self._time(answer, "update").times(accumulation * rollout.epochs * shorter),
                self._time(answer, "optimizer").times(rollout.epochs),
            ]
        )
        step = parts.total
        return Speed(step_time_s=step, tokens_per_s=tokens / rollout.steps / step, parts=parts)
