"""Shardings that only save memory where there is enough of it. Pure.

A higher stage of ZeRO divides more and exchanges more, and what is offloaded has to come back.
Where a probe fitted that divides less, with all else the same, one that divides more is pointless -
unless it is expected to be as fast: dividing the optimizer's step can save more time than the
exchange takes.
"""

from collections.abc import Mapping
from typing import Any

from autotune.search.record import Record, excess_bytes
from autotune.space.knobs import Candidate
from autotune.space.sharding.sharding import (
    DATA_PARALLEL,
    DEEPSPEED,
    FSDP,
    NONE,
    SHARDING_KNOBS,
    Sharding,
    engine_name,
    sharding_of,
)

_FARTHER = ("none", "cpu")


def divides_more_than_it_must(
    candidate: Candidate,
    record: Record,
    allowed_bytes: int | None,
    speeds: Mapping[str, float],
) -> str | None:
    """Return why the probe of `record` makes one of `candidate` pointless; None: it does not.

    Args:
        speeds: expected tokens per second of candidates, by their keys.
    """
    measurement, probed_candidate = record.measurement, record.candidate
    assert measurement is not None
    if measurement.outcome != "ok" or (excess_bytes(measurement, allowed_bytes) or 0) > 0:
        return None
    changed_names = (
        candidate.differences(probed_candidate).keys()
        | probed_candidate.differences(candidate).keys()
    )
    if not changed_names or not changed_names <= set(SHARDING_KNOBS):
        return None
    if not saves_more(_sharding(candidate.values), _sharding(probed_candidate.values)):
        return None
    speed, probed_speed = speeds.get(candidate.key), speeds.get(probed_candidate.key)
    if speed is None or probed_speed is None or speed >= probed_speed:
        return None
    name = engine_name(_sharding(probed_candidate.values))
    return (
        f"probe {record.number} fits with {name}; more sharding or offloading is estimated slower"
    )


def saves_more(first: Sharding, second: Sharding) -> bool:
    """True if `first` divides and offloads all that `second` does, and more. ZeRO and FSDP are
    different programs: each is compared with its own kind and with plain copies."""
    kinds = {first.distributed_type, second.distributed_type} - {*DATA_PARALLEL, NONE}
    if len(kinds) != 1 or not kinds <= {DEEPSPEED, FSDP}:
        return False
    steps = list(zip(_steps(first), _steps(second), strict=True))
    return all(a >= b for a, b in steps) and any(a > b for a, b in steps)


def _steps(sharding: Sharding) -> tuple[int, int, int]:
    """Return how much is divided, and how far away the optimizer and the weights are kept."""
    stage = sharding.zero_stage
    if sharding.distributed_type == FSDP:
        stage = 3 if sharding.fsdp_reshard_after_forward else 2
    places = (sharding.offload_optimizer_device, sharding.offload_param_device)
    return stage, _FARTHER.index(places[0]), _FARTHER.index(places[1])


def _sharding(values: Mapping[str, Any]) -> Sharding:
    return sharding_of(values, 2)
