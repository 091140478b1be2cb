"""Of which engines a trace is worth making, where there are many. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.plan.choices import AS_FAST, is_safe
from autotune.plan.variants import VariantTask

FIRST = 4
"""Of the tasks with the fastest candidates so many are traced. Chosen, not measured."""
SLOWER = 0.9
"""What reaches less of the fastest one's speed is left to the formula. Chosen, not measured."""
MUCH_LARGER = 1.7
"""Where nothing fits, one that takes so much more than the leanest is. Chosen, not measured."""
RULED_OUT = 0.95
"""What does not fit with this probability is not looked at more closely."""
LIKELY = 0.5
"""The same where one of its kind was traced."""
Rank = tuple[bool, float]
"""(does not fit, less tokens/s, or where it does not fit more bytes): the least comes first."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Of which tasks engines are traced.

    Attributes:
        first: of so many, the fastest first; 0: of none; None: of all.
        each_sharding: and of the first of every sharding.
        settled: and of the first candidate with all layers.
    """

    first: int | None
    each_sharding: bool = False
    settled: bool = False


PROMISING = Effort(first=FIRST, each_sharding=True, settled=True)
EVERY = Effort(first=None, settled=True)


def representatives(task: VariantTask) -> VariantTask:
    """Return a task with one candidate for each of its points, and for each way to adjust what is
    traced there."""
    firsts = {(member.place, member.replaced): member for member in reversed(task.members)}
    return dataclasses.replace(task, members=tuple(firsts.values()))


def to_trace(
    tasks: Sequence[VariantTask],
    replies: Mapping[int, EstimateReply],
    ranks: Mapping[int, Rank],
    effort: Effort = PROMISING,
) -> list[int]:
    """Return indices of the engines to trace next, of those that are by formula and were not tried.

    Args:
        ranks: what is expected of each task, by its index.
    """
    order = sorted(ranks, key=lambda number: ranks[number])
    free = {n for n, reply in replies.items() if reply.by_formula and reply.engine_problem is None}
    traced = {_sharding_key(task) for n, task in enumerate(tasks) if n not in free}
    known_ranks = [ranks[n] for n in order if not replies[n].by_formula]
    needless = {number for number in ranks if _offloads_needlessly(tasks, ranks, number)}
    numbers = [number for number in order if number not in needless][: effort.first]
    if known_ranks:
        numbers = [number for number in numbers if ranks[number] <= _within_reach(known_ranks[0])]
    enough = _within_reach(ranks[order[0]])
    for number in order if effort.each_sharding else ():
        sharding = _sharding_key(tasks[number])
        if number not in needless and sharding not in traced and ranks[number] <= enough:
            traced.add(sharding)
            numbers.append(number)
    return [number for number in dict.fromkeys(numbers) if number in free]


def first_of_kinds(numbers: Sequence[int], kinds: Mapping[int, object]) -> list[int]:
    """Return the first of each kind: the others can wait for what its trace says of them."""
    firsts: dict[object, int] = {}
    for number in numbers:
        firsts.setdefault(kinds[number], number)
    return list(firsts.values())


def _within_reach(best: Rank) -> Rank:
    """Return the last rank that is worth a trace beside the best one."""
    none_fits, amount = best
    return none_fits, amount * (MUCH_LARGER if none_fits else SLOWER)


def _offloads_needlessly(
    tasks: Sequence[VariantTask], ranks: Mapping[int, Rank], number: int
) -> bool:
    """True if a task offloads, and does no better than one that is alike and does not."""
    sharding = tasks[number].request.parsed_sharding
    if not sharding.offloads:
        return False
    kept = dataclasses.replace(
        sharding, offload_optimizer_device="none", offload_param_device="none"
    )
    return any(
        tasks[other].request.parsed_sharding == kept and _about_as_good(rank, ranks[number])
        for other, rank in ranks.items()
    )


def _about_as_good(rank: Rank, other: Rank) -> bool:
    """True if the first of two ranks is the better one, or speeds are about the same."""
    return rank <= other or (not rank[0] and rank[1] <= (1 - AS_FAST) * other[1])


def _sharding_key(task: VariantTask) -> str:
    return repr(task.request.sharding)


def rank(estimate: Estimate, *, by_formula: bool, ruled_out: float = RULED_OUT) -> Rank:
    """Return what may fit comes first, the fastest of it before the others; else the leanest.

    Args:
        by_formula: whether its engine is; of what was traced counts whether it is safe.
        ruled_out: the probability of running out of memory from which on it may not fit then.
    """
    if _may_fit(estimate, ruled_out) if by_formula else is_safe(estimate):
        return False, -(estimate.tokens_per_s or 0.0)
    return True, float(estimate.peak_memory_bytes)


def _may_fit(estimate: Estimate, ruled_out: float) -> bool:
    device = 0.0 if estimate.at_most else estimate.p_oom
    return max(device, estimate.p_host_oom or 0.0) < ruled_out
