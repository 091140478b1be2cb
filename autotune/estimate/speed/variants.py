"""The speed of a variant's candidates, from its traced work and a device's ceilings. Pure.

Where completions are generated (`RolloutTime`), a step is its share of the rounds (a prompt's pass,
a decoding pass for each further token, the scoring), its micro-steps and the optimizer's step.
Prompts, scoring and update are traced at the longest prompts and shortened to those of the data in
proportion. Known error: the time of reward functions is not counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autotune.estimate.protocol import EstimateReply, Point, PointReply, ShapeWork
from autotune.estimate.records.events import FLASH_PACKAGE, Work, work_from_plain
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.shapes import ShapeTimes
from autotune.estimate.speed.step_time import (
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
