"""The engines that are worth a trace, where there are many. Pure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import AS_FAST, is_safe
from autotune.plan.engine_tasks import Rank, TaskRecord
from autotune.plan.variants import VariantTask

FIRST = 4
"""Number of tasks with the fastest candidates that are traced. Chosen, not measured."""
SLOWER = 0.9
"""Share of the fastest one's speed below which a task is left to the formula. Chosen, not
measured."""
MUCH_LARGER = 1.7
"""Multiple of the leanest one's memory up to which tasks are traced where nothing fits. Chosen, not
measured."""
RULED_OUT = 0.95
"""Probability of running out of memory from which on a task is not traced."""
LIKELY = 0.5
"""The same probability where a task of the same kind was traced."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The tasks whose engines are traced.

    Attributes:
        first: so many, the fastest first; 0: none; None: all.
        each_sharding: and the first of every sharding.
        settled: and the first candidate with all layers.
    """

    first: int | None
    each_sharding: bool = False
    settled: bool = False


PROMISING = Effort(first=FIRST, each_sharding=True, settled=True)
EVERY = Effort(first=None, settled=True)
BY_FORMULA = Effort(first=0)


def representatives(task: VariantTask) -> VariantTask:
    """Return a task with one candidate for each of its points, and for each way to adjust the trace
    of a point."""
    kept = {(member.place, member.replaced): member for member in reversed(task.members)}
    return dataclasses.replace(task, members=tuple(kept.values()))


def to_trace(records: Sequence[TaskRecord], effort: Effort = PROMISING) -> list[TaskRecord]:
    """Return the tasks whose engines to trace next, among those that are by formula and were not
    tried."""
    ordered = sorted(records, key=lambda record: record.rank)
    useful = [record for record in ordered if not _offloads_needlessly(record, records)]
    chosen = useful[: effort.first]
    best_known = next((r.rank for r in ordered if not r.reply.by_formula), None)
    if best_known is not None:
        chosen = [record for record in chosen if record.rank <= _within_reach(best_known)]
    traced = {_sharding_key(record) for record in records if not _is_open(record)}
    enough = _within_reach(ordered[0].rank)
    for record in useful if effort.each_sharding else ():
        if _sharding_key(record) not in traced and record.rank <= enough:
            traced.add(_sharding_key(record))
            chosen.append(record)
    return [record for record in dict.fromkeys(chosen) if _is_open(record)]


def _is_open(record: TaskRecord) -> bool:
    """True if its engine may still be traced."""
    return record.reply.by_formula and record.reply.engine_problem is None


def _within_reach(best: Rank) -> Rank:
    """Return the last rank that is worth a trace beside the best one."""
    none_fits, amount = best
    return none_fits, amount * (MUCH_LARGER if none_fits else SLOWER)


def _offloads_needlessly(record: TaskRecord, records: Sequence[TaskRecord]) -> bool:
    """True if a task offloads, and does no better than the same one without offloading."""
    if not record.sharding.offloads:
        return False
    kept = dataclasses.replace(
        record.sharding, offload_optimizer_device="none", offload_param_device="none"
    )
    return any(r.sharding == kept and _about_as_good(r.rank, record.rank) for r in records)


def _about_as_good(rank: Rank, other: Rank) -> bool:
    """True if the first of two ranks is the better one, or the speeds are about the same."""
    return rank <= other or (not rank[0] and rank[1] <= (1 - AS_FAST) * other[1])


def _sharding_key(record: TaskRecord) -> str:
    return repr(record.task.request.sharding)


def rank(estimate: Estimate, *, by_formula: bool, ruled_out: float = RULED_OUT) -> Rank:
    """Return the rank of an estimate: first what may fit, the fastest before the others; then the
    leanest.

    Args:
        by_formula: whether its engine is by formula; what was traced has to be safe.
        ruled_out: the probability of running out of memory from which on it may not fit then.
    """
    if _may_fit(estimate, ruled_out) if by_formula else is_safe(estimate):
        return False, -(estimate.tokens_per_s or 0.0)
    return True, float(estimate.peak_memory_bytes)


def _may_fit(estimate: Estimate, ruled_out: float) -> bool:
    device = 0.0 if estimate.at_most else estimate.p_oom
    return max(device, estimate.p_host_oom or 0.0) < ruled_out
