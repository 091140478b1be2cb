"""How few decoder layers an engine is traced with, and what follows for all of them. Pure.

Two depths, and a line through them (`peaks_by_depth.py`). Where DeepSpeed's stages 1 and 2 part the
gradients of all weights among the ranks, the cut goes through another weight at each depth, and
whole weights are kept on one side of it. As many layers apart as there are ranks it goes through
the same one, so that the line has the right slope.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.estimate.records.interpolation import Weights, lagrange
from autotune.space.sharding.deepspeed import MAX_LIVE_PARAMETERS, SUB_GROUP
from autotune.space.sharding.sharding import Sharding

_ALL = 10**15
FEWEST, APART, MOST_APART = 6, 2, 8
"""Six layers have all kinds of stretches."""


def depths(layers: int, sharding: Sharding, *, adapters: bool) -> tuple[int, ...]:
    """Return how many layers to trace; only the model's own number where two traces would cost as
    much.

    Args:
        adapters: whether only adapters are trained, whose gradients are too small to matter.
    """
    distance = APART
    parted = sharding.zero_stage in (1, 2) and sharding.offload_optimizer_device == "none"
    if parted and not adapters:
        distance = min(max(sharding.num_processes, APART), MOST_APART)
    shallow = (FEWEST, FEWEST + distance)
    return shallow if layers > sum(shallow) else (layers,)


def at_depth(traced_depths: tuple[int, ...], layers: int) -> Weights:
    """Return the weights of the traced depths at the model's own."""
    return lagrange(traced_depths, layers)


@dataclass(frozen=True, kw_only=True)
class LiveLimits:
    """What DeepSpeed's stage 3 has at once, however many layers there are. Bytes.

    Attributes:
        gathered: weights from which on none are fetched ahead. What is needed at once is gathered
            all the same, so that there may be a little more.
        stepped: gradients whose weights an optimizer's step updates together; the next come when
            these are done. A group may have one more weight than fits.
        widened: the same gradients in float32, as a step makes them.
    """

    gathered: int
    stepped: int
    widened: int


def live_limits(
    deepspeed: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> LiveLimits | None:
    """Return the limits that DeepSpeed's file sets; None: not stage 3."""
    zero = (deepspeed or {}).get("zero_optimization", {})
    if zero.get("stage") != 3:
        return None
    width = 2 if config.get("bf16") or config.get("fp16") else 4
    group = int(zero.get("sub_group_size", SUB_GROUP))
    return LiveLimits(
        gathered=int(zero.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS)) * width,
        stepped=group * width,
        widened=group * 4,
    )


def with_one_sub_group(deepspeed: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """DeepSpeed's file with one group for an optimizer's step on this device, so that what the step
    takes grows with each layer alike."""
    zero = (deepspeed or {}).get("zero_optimization", {})
    if deepspeed is None or zero.get("stage") != 3 or "offload_optimizer" in zero:
        return None if deepspeed is None else dict(deepspeed)
    return {**deepspeed, "zero_optimization": {**zero, "sub_group_size": _ALL}}
