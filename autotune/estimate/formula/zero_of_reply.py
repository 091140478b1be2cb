"""An estimate of data parallelism as one of DeepSpeed's stages or of FSDP2, by formula. Pure.

The record of the traced training is not at hand any more, only what its peaks are made of and how
high each phase goes. A few events stand for it, which `zero.py` divides as it divides a record.
Known error: that of the formula (`docs/estimates.md`).
"""

from dataclasses import replace

from autotune.estimate.formula.zero import Zero, sharded_record
from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    DATA,
    FREE,
    GRADIENTS,
    LASTING,
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
    """Return what a point takes of each device where the training is divided.

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
        micro_peaks=use.micro_peaks,
        oom=False,
        missing_bytes=None,
        retries=0,
        host_bytes=0,
    )


def _stand_in_events(point: PointReply, gradients: int, accumulates: bool) -> list[Event]:
    """Return the events that stand for a record: what lasts, moments of micro-steps, an optimizer's
    step.

    Gradients only become more in a micro-step that does not accumulate: at the end all are there. A
    first step may be the highest, before all states are there.
    """
    moments = (point.parts, *point.micro_peaks)
    lasting = [(part, max(m.get(part, 0) for m in moments)) for part in (WEIGHTS, OPTIMIZER)]
    events = [_allocate(n, part, size) for n, (part, size) in enumerate(lasting)]
    events += [(PHASE, DATA, 0), (PHASE, MICRO_STEP, 0)]
    for moment in point.micro_peaks:
        early = gradients if accumulates else min(gradients, moment.get(GRADIENTS, 0))
        passing = {part: n for part, n in moment.items() if part not in (*LASTING, COMMUNICATION)}
        there = {GRADIENTS: early, **passing}.items()
        first = len(events)
        events += [_allocate(first + n, *item, point.operator) for n, item in enumerate(there)]
        events += [(FREE, first + n, NOWHERE) for n in range(len(there))]
    return [*events, _allocate(len(events), GRADIENTS, gradients), (PHASE, STEP, 0)]


def _allocate(number: int, part: str, size: int, operator: str = "") -> Event:
    return (ALLOCATE, number, size, part, operator, NOWHERE)
