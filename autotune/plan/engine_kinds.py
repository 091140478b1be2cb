"""What the trace of one engine says of others of its kind that were not traced. Pure.

By formula an engine computes as copies do. Traced, it does not: DeepSpeed and FSDP2 hold weights
of 16 bits, which copies cast from 32 bits in each step. What one of them computes, another computes
too that goes the same way through the program. Memory is much the same within a library alone.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from autotune.estimate.protocol import EstimateReply, PointReply
from autotune.plan.shared_traces import Base
from autotune.plan.variants import VariantTask

Kind = tuple[int, str]
"""The way through the program, and the library that divides the training."""


def kinds_of(tasks: Sequence[VariantTask], shared: Sequence[Base]) -> dict[int, Kind]:
    """Of each task that has an engine, by its index, its kind."""
    return {
        number: (place, tasks[number].request.parsed_sharding.distributed_type)
        for place, base in enumerate(shared)
        for number in base.members
        if tasks[number].engine
    }


def likes_of(
    tasks: Sequence[VariantTask], kinds: Mapping[int, Kind], replies: Mapping[int, EstimateReply]
) -> dict[int, int]:
    """Of each task whose engine was not traced, the index of one that goes the same way and was: of
    the same library and stage, where there is such a one. What has a problem is like nothing."""
    traced = [n for n in kinds if not replies[n].by_formula and replies[n].problem is None]
    likes: dict[int, int] = {}
    for number, (way, library) in kinds.items():
        stage = tasks[number].request.parsed_sharding.zero_stage
        order = {
            n: (kinds[n][1] != library, tasks[n].request.parsed_sharding.zero_stage != stage, n)
            for n in traced
            if kinds[n][0] == way
        }
        if replies[number].by_formula and replies[number].problem is None and order:
            likes[number] = min(order, key=lambda n: order[n])
    return likes


def with_work_of(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """Return an engine's reply by formula with the work of one like it, which was traced."""
    return dataclasses.replace(
        formula,
        shapes=traced.shapes,
        copied_shapes=formula.copied_shapes or formula.shapes,
        optimizer_work=traced.optimizer_work,
    )


def expectation(
    number: int,
    other: int,
    tasks: Sequence[VariantTask],
    formulas: Mapping[int, EstimateReply],
    traced: EstimateReply,
) -> EstimateReply:
    """Return what the trace of a task's like lets expect of it: the same work, and memory that is
    as far from its formula.

    Args:
        number: index of the task.
        other: index of the one that was traced; `traced` is its reply.
        formulas: both tasks' replies by formula.
    """
    request = tasks[other].request
    known = {
        repr(point): (answer, by_formula)
        for point, answer, by_formula in zip(
            request.points, traced.points, formulas[other].points, strict=True
        )
    }
    points = [
        _moved(answer, *known[repr(point)]) if repr(point) in known else answer
        for point, answer in zip(tasks[number].request.points, formulas[number].points, strict=True)
    ]
    return dataclasses.replace(with_work_of(formulas[number], traced), points=points)


def _moved(answer: PointReply, traced: PointReply, by_formula: PointReply) -> PointReply:
    """Return an answer by formula, with what another one's trace found beyond its own formula."""
    if traced.at_least:
        return answer
    beyond = traced.peak_reserved_bytes - by_formula.peak_reserved_bytes
    return dataclasses.replace(
        answer,
        peak_allocated_bytes=max(answer.peak_allocated_bytes + beyond, 0),
        peak_reserved_bytes=max(answer.peak_reserved_bytes + beyond, 0),
        oom=traced.oom,
        missing_bytes=traced.missing_bytes,
    )
