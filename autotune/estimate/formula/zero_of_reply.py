"""An estimate of data parallelism as one of DeepSpeed's stages or of FSDP2, by formula. Pure.

The record of the traced training is not at hand any more, only what its peak is made of and how
high each phase goes. A few events stand for it, which `zero.py` divides as it divides a record.
Known error: that of the formula (`docs/estimates.md`); and where the peak is in an optimizer's
step, what a micro-step has may be taken for up to all gradients more.
"""

from dataclasses import replace

from autotune.estimate.formula.zero import LASTING, Zero, sharded_record
from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import (
    ACTIVATIONS,
    ALLOCATE,
    COMMUNICATION,
    DATA,
    FREE,
    GRADIENTS,
    MICRO_STEP,
    NOWHERE,
    OPTIMIZER,
    PHASE,
    STEP,
    WEIGHTS,
    Event,
    live_bytes,
)


def sharded_point(
    point: PointReply, zero: Zero, *, gradients: int, accumulates: bool
) -> PointReply:
    """What a point takes of each device where the training is divided.

    Args:
        point: the same of data parallelism.
        gradients: bytes of all gradients there.
        accumulates: whether they are in memory during the worst micro-batch.
    """
    use = live_bytes(sharded_record(_stand_in_events(point, gradients, accumulates), zero))
    reserved_ratio = point.peak_reserved_bytes / max(point.peak_allocated_bytes, 1)
    return replace(
        point,
        peak_allocated_bytes=use.peak_bytes,
        peak_reserved_bytes=round(reserved_ratio * use.peak_bytes),
        parts=use.parts,
        operator=use.operator,
        phase=use.phase,
        phases=use.phases,
        oom=False,
        missing_bytes=None,
        retries=0,
        host_bytes=0,
    )


def _stand_in_events(point: PointReply, gradients: int, accumulates: bool) -> list[Event]:
    """The events that stand for a record: what lasts, a micro-step, an optimizer's step."""
    early = min(gradients, point.parts.get(GRADIENTS, 0)) if _in_micro_step(point) else 0
    if accumulates:
        early = gradients
    sizes = [(part, point.parts.get(part, 0)) for part in (WEIGHTS, OPTIMIZER)]
    lasting = [(ALLOCATE, n, size, part, "", NOWHERE) for n, (part, size) in enumerate(sizes)]
    passing = _passing(point, early)
    micro = [
        (ALLOCATE, 4 + n, size, part, point.operator, NOWHERE)
        for n, (part, size) in enumerate(passing.items())
    ]
    return [
        *lasting,
        (PHASE, DATA, 0),
        (PHASE, MICRO_STEP, 0),
        (ALLOCATE, 2, early, GRADIENTS, "", NOWHERE),
        *micro,
        *((FREE, event[1], NOWHERE) for event in micro),
        (ALLOCATE, 3, gradients - early, GRADIENTS, "", NOWHERE),
        (PHASE, STEP, 0),
    ]


def _in_micro_step(point: PointReply) -> bool:
    return point.phase == MICRO_STEP


def _passing(point: PointReply, early: int) -> dict[str, int]:
    """What the worst micro-step has above what lasts, by part."""
    if _in_micro_step(point):
        left_out = (*LASTING, COMMUNICATION)
        return {part: size for part, size in point.parts.items() if part not in left_out}
    lasting_parts = (WEIGHTS, OPTIMIZER, COMMUNICATION)
    lasting = early + sum(point.parts.get(part, 0) for part in lasting_parts)
    return {ACTIVATIONS: max(point.phases.get(MICRO_STEP, 0) - lasting, 0)}
