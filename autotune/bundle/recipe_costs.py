"""What each value of a recipe knob costs. Pure."""

from collections.abc import Collection, Sequence
from typing import Any

from autotune.search.recommend import Ranked
from autotune.space.knobs import value_label


def recipe_costs(
    ranked: Sequence[Ranked], recipe_knobs: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """What each value of a recipe knob costs: the best that was measured with it."""
    costs: dict[str, list[dict[str, Any]]] = {}
    for knob in sorted(recipe_knobs):
        best: dict[str, Ranked] = {}
        for one in sorted(ranked, key=lambda one: -one.tokens_per_s):
            best.setdefault(value_label(one.candidate[knob]), one)
        if len(best) > 1:
            costs[knob] = [
                {
                    "value": one.candidate[knob],
                    "probe": one.number,
                    "tokens_per_s": one.tokens_per_s,
                    "peak_memory_bytes": one.peak_memory_bytes,
                }
                for one in best.values()
            ]
    return costs
