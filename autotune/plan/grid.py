"""Checkpointing of some layers, from the traces without it and of all layers. Pure.

Of every n-th layer it lies on the line between the two; selective and offloaded checkpointing are
the trace of all layers, with what these keep or take away by arithmetic. So each value has its
estimate without a trace; the values that are expected to be faster than all that was traced, or
where nothing fits leaner, are traced themselves.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.estimate.records.events import ACTIVATIONS, MICRO_STEP
from autotune.estimate.variant import variant_of
from autotune.plan.choices import AS_FAST
from autotune.plan.exchange import computed_bytes, is_wide
from autotune.plan.trace_choice import LIKELY, Effort, rank, representatives
from autotune.plan.variants import VariantTask
from autotune.space.checkpointing import (
    GRID,
    OFFLOAD,
    SELECTIVE,
    share_again,
    value_in,
    without_fields,
)

Trace = Callable[
    [Sequence[VariantTask], str, Callable[[int, EstimateReply], None] | None], list[EstimateReply]
]
"""A function that traces tasks in children, in a folder of that name, and hands each reply on as it
comes."""
BETWEEN = "between traces"
SIGMA = 0.05
"""Relative standard deviation of such bytes (`benchmarks/checkpointing`)."""
AT_ONCE, MOST = 2, 4
"""Values traced beside each other, and in all. Chosen, not measured."""
_APART = ("points", "config")


def traced_where_promising(
    trace: Trace, estimates: Callable[[VariantTask, EstimateReply], dict[str, Estimate]], most: int
) -> Trace:
    """Return a function that traces few of the values between none and all layers.

    Args:
        estimates: of the candidates of a task, by a reply.
        most: so many of these values are traced.
    """

    def traced(
        tasks: Sequence[VariantTask], name: str, hear: Callable[[int, EstimateReply], None] | None
    ) -> list[EstimateReply]:
        between, replies = ends_of(tasks), dict[int, EstimateReply]()

        def take(numbers: Sequence[int], folder: str) -> None:
            def receive(place: int, reply: EstimateReply) -> None:
                if hear is not None:
                    hear(numbers[place], reply)

            found = trace([tasks[number] for number in numbers], folder, receive)
            replies.update(zip(numbers, found, strict=True))

        take([number for number in range(len(tasks)) if number not in between], name)
        for number, ends in between.items():
            replies[number] = _between(tasks, replies, number, *ends)
            if hear is not None:
                hear(number, replies[number])
        left, still = most, set(between)
        while left and (
            chosen := _promising(tasks, replies, still, estimates)[: min(left, AT_ONCE)]
        ):
            take(chosen, f"{name}-{min(chosen)}")
            left, still = left - len(chosen), still - set(chosen)
        return [replies[number] for number in range(len(tasks))]

    return traced


def most_traced(effort: Effort) -> int:
    """Return how many of these values an effort traces."""
    return MOST if effort.first is None else min(effort.first, MOST)


def ends_of(tasks: Sequence[VariantTask]) -> dict[int, tuple[int, int]]:
    """Return, for each task between, the number of the same without checkpointing, and with it in
    all layers."""
    ends: dict[tuple[str, Any], int] = {}
    keys = [_key(task) for task in tasks]
    for number, (key, value) in enumerate(keys):
        ends.setdefault((key, value), number)
    between = {}
    for number, (key, value) in enumerate(keys):
        pair = ends.get((key, False)), ends.get((key, True))
        if value not in GRID or tasks[number].engine or None in pair:
            continue
        none, all_layers = pair
        assert none is not None and all_layers is not None
        points = tasks[number].request.points
        if all(
            point in tasks[end].request.points for end in (none, all_layers) for point in points
        ):
            between[number] = none, all_layers
    return between


def _key(task: VariantTask) -> tuple[str, Any]:
    """Return the same text for tasks that differ in their checkpointing and points only, and their
    checkpointing."""
    fields = {name: v for name, v in task.request.plain().items() if name not in _APART}
    config = task.traced.config
    same = json.dumps([fields, variant_of(without_fields(config))], sort_keys=True)
    return same, value_in(config)


def _promising(
    tasks: Sequence[VariantTask],
    replies: Mapping[int, EstimateReply],
    between: set[int],
    estimates: Callable[[VariantTask, EstimateReply], dict[str, Estimate]],
) -> list[int]:
    """Return the tasks between that are expected to be better than all that were traced, the best
    first."""
    ranks = {}
    for number, reply in replies.items():
        found = estimates(representatives(tasks[number]), reply).values()
        untraced = number in between
        ranks[number] = min(rank(e, by_formula=untraced, ruled_out=LIKELY) for e in found)
    none_fits, amount = min(ranks[number] for number in replies if number not in between)
    enough = none_fits, amount if none_fits else amount * (1 + AS_FAST)
    better = [number for number in between if ranks[number] < enough]
    return sorted(better, key=lambda number: ranks[number])


def _between(
    tasks: Sequence[VariantTask],
    replies: Mapping[int, EstimateReply],
    number: int,
    none: int,
    all_layers: int,
) -> EstimateReply:
    """Return the reply of a task from those of its ends."""
    task, ends = tasks[number], (replies[none], replies[all_layers])
    problem = next((end.problem for end in ends if end.problem is not None), None)
    if problem is not None:
        return dataclasses.replace(ends[1], problem=problem)
    value, layers = value_in(task.traced.config), max(task.request.layers, 1)
    kept = 1 - share_again(value, layers)
    points = []
    for point in task.request.points:
        pair = [
            reply.points[tasks[end].request.points.index(point)]
            for end, reply in zip((none, all_layers), ends, strict=True)
        ]
        answer = _on_line(*pair, kept)
        points.append(_adjusted(answer, task, value, layers))
    shapes = [
        dataclasses.replace(full, work=_work(value, kept, without.work, full.work))
        for full in ends[1].shapes
        for without in ends[0].shapes
        if _shape(full) == _shape(without)
    ]
    return dataclasses.replace(ends[1], points=points, shapes=shapes)


def _shape(shape: ShapeWork) -> tuple[int, int, bool, bool]:
    return shape.rows, shape.length, shape.masked, shape.flat


def _on_line(none: PointReply, full: PointReply, kept: float) -> PointReply:
    """Return a point whose layers keep all in this share of them."""

    def line(first: int, second: int) -> int:
        return round(second + kept * (first - second))

    def lines(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        names = dict.fromkeys([*second, *first])
        return {name: line(first.get(name, 0), second.get(name, 0)) for name in names}

    parts = lines(none.parts, full.parts)
    return dataclasses.replace(
        none if kept else full,
        peak_allocated_bytes=sum(parts.values()),
        peak_reserved_bytes=line(none.peak_reserved_bytes, full.peak_reserved_bytes),
        parts=parts,
        phases=lines(none.phases, full.phases),
        micro_peaks=[
            lines(*pair) for pair in zip(none.micro_peaks, full.micro_peaks, strict=False)
        ],
        oom=False,
        missing_bytes=None,
        retries=0,
        method=BETWEEN,
        sigma=SIGMA,
        at_least=none.at_least or full.at_least,
    )


def _adjusted(answer: PointReply, task: VariantTask, value: Any, layers: int) -> PointReply:
    """Return a point with what selective checkpointing keeps (each layer's result of attention), or
    without what waits on the host (the inputs of all layers but one)."""
    if value not in (SELECTIVE, OFFLOAD):
        return answer
    config, tokens = task.traced.config, max(padded for _, padded, _ in answer.sample)
    numbers = layers * tokens * task.request.hidden
    copied, added = 0, numbers * computed_bytes(config)
    if value == OFFLOAD:
        copied = numbers * (4 if is_wide(config) else 2)
        added = -copied * (layers - 1) // layers
    others = [peak for phase, peak in answer.phases.items() if phase != MICRO_STEP]
    activations = answer.parts.get(ACTIVATIONS, 0)
    added = max(added, max(others, default=0) - answer.peak_allocated_bytes, -activations)
    pinned = layers * (1 << (copied // layers - 1).bit_length()) if copied else 0
    return dataclasses.replace(
        answer,
        peak_allocated_bytes=answer.peak_allocated_bytes + added,
        peak_reserved_bytes=answer.peak_reserved_bytes + added,
        parts={**answer.parts, ACTIVATIONS: activations + added},
        copied_bytes=copied,
        host_bytes=pinned,
    )


def _work(value: Any, kept: float, none: Sequence[Any], full: Sequence[Any]) -> list[Any]:
    """Return the work of a shape: rows, each with how often it is done; attention once where its
    result is kept."""
    times: dict[str, list[Any]] = {}
    for share, rows in ((1 - kept, full), (kept, none)):
        for row in rows:
            entry = times.setdefault(repr(row[:-1]), [row, 0.0])
            again = 0.5 if value == SELECTIVE and row[1] == "attention" else 1.0
            entry[1] += share * again * row[-1]
    return [[*row[:-1], round(count)] for row, count in times.values() if round(count)]
