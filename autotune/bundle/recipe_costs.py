"""What each value of a recipe knob costs. Pure."""

from collections.abc import Collection, Sequence
from typing import Any

from autotune.search.recommend import Ranked
from autotune.space.knobs import value_label


def recipe_costs(
    ranked: Sequence[Ranked], recipe_knobs: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return what each value of a recipe knob costs: the best that was measured with it."""
    costs: dict[str, list[dict[str, Any]]] = {}
    for knob in sorted(recipe_knobs):
        best: dict[str, Ranked] = {}
        for candidate in sorted(ranked, key=lambda candidate: -candidate.tokens_per_s):
            best.setdefault(value_label(candidate.candidate[knob]), candidate)
        if len(best) > 1:
            costs[knob] = [
                {
                    "value": candidate.candidate[knob],
                    "probe": candidate.number,
                    "tokens_per_s": candidate.tokens_per_s,
                    "peak_memory_bytes": candidate.peak_memory_bytes,
                }
                for candidate in best.values()
            ]
    return costs
