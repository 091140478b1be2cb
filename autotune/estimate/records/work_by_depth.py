"""The work of traces of few decoder layers as that of many. Pure.

Each layer does the same: what is done in all traces is done so many times more for each further
layer. What goes over all weights at once (a flat part, a list of tensors) is done as often, and is
larger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.estimate.records.events import NOWHERE, Work
from autotune.estimate.records.interpolation import Weights


def work_at_depth(works_of_traces: Sequence[Sequence[Work]], weights: Weights) -> Counter[Work]:
    """Return each operator, and how often it is run; without regions.

    Args:
        works_of_traces: the operators of each trace.
        weights: of these traces at the depth that is wanted.
    """
    counts = [Counter(replace(work, region=NOWHERE) for work in works) for works in works_of_traces]
    total: Counter[Work] = Counter()
    for work in set.intersection(*(set(count) for count in counts)):
        total[work] = weights.interpolate([count[work] for count in counts])
    remainders = [_by_kind((w, n) for w, n in count.items() if w not in total) for count in counts]
    for kind in dict.fromkeys(kind for remainder in remainders for kind in remainder):
        total += _mean_sized([remainder.get(kind, []) for remainder in remainders], weights)
    return +total


def _by_kind(works: Iterable[tuple[Work, int]]) -> dict[object, list[tuple[Work, int]]]:
    by_kind: dict[object, list[tuple[Work, int]]] = defaultdict(list)
    for work, times in works:
        by_kind[work.signature].append((work, times))
    return by_kind


def _mean_sized(
    counterparts: Sequence[Sequence[tuple[Work, int]]], weights: Weights
) -> Counter[Work]:
    """Operators of one kind that are of another size in each trace, as one of their mean size."""
    times = weights.interpolate([sum(n for _, n in works) for works in counterparts])
    if not times:
        return Counter()
    flops = weights.interpolate([sum(w.flops * n for w, n in works) for works in counterparts])
    moved_bytes = weights.interpolate(
        [sum(w.moved_bytes * n for w, n in works) for works in counterparts]
    )
    largest = max(
        (w for works in counterparts for w, _ in works), key=lambda work: work.moved_bytes
    )
    return Counter(
        {replace(largest, flops=flops // times, moved_bytes=moved_bytes // times): times}
    )
