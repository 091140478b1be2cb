"""How few decoder layers an engine is traced with, and what follows for all of them. Pure.

Two depths, and a line through them (`moments.py`). Where DeepSpeed's stages 1 and 2 part the
gradients of all weights among the ranks, the cut goes through another weight at each depth, and
whole weights are kept on one side of it. As many layers apart as there are ranks it goes through
the same one, so that the line has the right slope.
"""

from collections.abc import Mapping
from typing import Any

from autotune.estimate.polynomial import Weights, lagrange
from autotune.estimate.zero import MAX_LIVE_PARAMETERS
from autotune.space.sharding import Sharding

FEWEST, APART, MOST_APART = 6, 2, 8
"""From six layers on there are all kinds of moments."""


def depths(layers: int, sharding: Sharding, *, adapters: bool) -> tuple[int, ...]:
    """How many layers to trace; only the model's own number where two traces would cost as much.

    Args:
        adapters: whether only adapters are trained, whose gradients are too small to matter.
    """
    apart = APART
    parted = sharding.zero_stage in (1, 2) and sharding.offload_optimizer_device == "none"
    if parted and not adapters:
        apart = min(max(sharding.num_processes, APART), MOST_APART)
    few = (FEWEST, FEWEST + apart)
    return few if layers > sum(few) else (layers,)


def at_depth(known: tuple[int, ...], layers: int) -> Weights:
    """The weights of the traced depths at the model's own."""
    return lagrange(known, layers)


def most_gathered(deepspeed: Mapping[str, Any] | None, config: Mapping[str, Any]) -> int | None:
    """Bytes of gathered weights from which on DeepSpeed's stage 3 fetches none ahead; None: not it.

    What is needed at once is gathered all the same, so that there may be a little more.
    """
    zero = (deepspeed or {}).get("zero_optimization", {})
    if zero.get("stage") != 3:
        return None
    half = bool(config.get("bf16") or config.get("fp16"))
    return int(zero.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS)) * (2 if half else 4)
