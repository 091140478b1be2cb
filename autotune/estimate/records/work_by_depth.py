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


def work_at_depth(known: Sequence[Sequence[Work]], weights: Weights) -> Counter[Work]:
    """Each operator, and how often it is run; without regions.

    Args:
        known: the operators of each trace.
        weights: of these traces at the depth that is wanted.
    """
    counted = [Counter(replace(work, region=NOWHERE) for work in works) for works in known]
    total: Counter[Work] = Counter()
    for work in set.intersection(*(set(one) for one in counted)):
        total[work] = weights.between([one[work] for one in counted])
    rest = [_by_kind((w, n) for w, n in one.items() if w not in total) for one in counted]
    for kind in dict.fromkeys(kind for one in rest for kind in one):
        total += _grown([one.get(kind, []) for one in rest], weights)
    return +total


def _by_kind(works: Iterable[tuple[Work, int]]) -> dict[object, list[tuple[Work, int]]]:
    found: dict[object, list[tuple[Work, int]]] = defaultdict(list)
    for work, times in works:
        found[work.signature].append((work, times))
    return found


def _grown(same: Sequence[Sequence[tuple[Work, int]]], weights: Weights) -> Counter[Work]:
    """Operators of one kind that are of another size in each trace, as one of their mean size."""
    times = weights.between([sum(n for _, n in works) for works in same])
    if not times:
        return Counter()
    flops = weights.between([sum(w.flops * n for w, n in works) for works in same])
    moved = weights.between([sum(w.moved_bytes * n for w, n in works) for works in same])
    most = max((w for works in same for w, _ in works), key=lambda work: work.moved_bytes)
    return Counter({replace(most, flops=flops // times, moved_bytes=moved // times): times})
