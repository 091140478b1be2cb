"""What the trace of one engine says of others of its kind that were not traced. Pure.

By formula an engine computes as copies do. Traced, it does not: DeepSpeed and FSDP2 hold weights
of 16 bits, which copies cast from 32 bits in each step. What one of them computes, another of its
kind computes too, in the same way through the program.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from autotune.estimate.protocol import EstimateReply, PointReply
from autotune.plan.shared_traces import Base
from autotune.plan.variants import VariantTask


def kinds_of(tasks: Sequence[VariantTask], shared: Sequence[Base]) -> dict[int, str]:
    """Of each task that has an engine, by its index, a name that those of its kind share."""
    return {
        number: f"{place} {tasks[number].request.parsed_sharding.distributed_type}"
        for place, base in enumerate(shared)
        for number in base.members
        if tasks[number].engine
    }


def computing_as(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """An engine's reply by formula with the work of one of its kind, which was traced."""
    return dataclasses.replace(
        formula,
        shapes=traced.shapes,
        copied_shapes=formula.shapes,
        optimizer_work=traced.optimizer_work,
    )


def expected(
    number: int,
    other: int,
    tasks: Sequence[VariantTask],
    formulas: Mapping[int, EstimateReply],
    traced: EstimateReply,
) -> EstimateReply:
    """What the trace of a task's like lets expect of it: the same work, and memory that is as far
    from its formula.

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
    return dataclasses.replace(computing_as(formulas[number], traced), points=points)


def _moved(answer: PointReply, traced: PointReply, by_formula: PointReply) -> PointReply:
    """An answer by formula, with what another one's trace found beyond its own formula."""
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
