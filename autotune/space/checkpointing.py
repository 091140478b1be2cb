"""The values of the knob `gradient_checkpointing`: which layers are computed again in the backward
pass, and the fields that say it. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.facts.stack import field_name

CHECKPOINTING = "gradient_checkpointing"
KWARGS = "gradient_checkpointing_kwargs"
SELECTIVE, OFFLOAD = "selective", "offload"
EVERY = {"every_2": 2, "every_4": 4}
LEANEST_FIRST = (OFFLOAD, True, SELECTIVE, "every_2", "every_4", False)
"""All values, by the memory that they take; by speed the other way round, but for `selective`,
which repeats no attention."""
GRID = (SELECTIVE, *EVERY, OFFLOAD)
"""The values between none and all layers, and beyond."""
_ARGUMENTS: Mapping[Any, Mapping[str, Any]] = {
    SELECTIVE: {"selective": True},
    OFFLOAD: {"offload": True},
    **{value: {"every_n_layers": n} for value, n in EVERY.items()},
}


def checkpointing_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the two fields for a flat configuration that holds the knob; what the job says of the
    second one stays."""
    value = config.get(CHECKPOINTING, True)
    if not value:
        return {CHECKPOINTING: value}
    given = config.get(KWARGS) or {"use_reentrant": False}
    return {CHECKPOINTING: True, KWARGS: {**given, **_ARGUMENTS.get(value, {})}}


def contradicts(arguments: Any) -> bool:
    """True if a job's own arguments of checkpointing say what the knob says."""
    names = {name for fields in _ARGUMENTS.values() for name in fields}
    return isinstance(arguments, Mapping) and not names.isdisjoint(arguments)


def value_in(config: Mapping[str, Any]) -> Any:
    """Return the value of the knob that the fields of a configuration stand for, by whichever name
    its stack has them."""
    if not _field(config, CHECKPOINTING):
        return False
    arguments = _field(config, KWARGS)
    if not isinstance(arguments, Mapping):
        return True
    levels = (level for level, own in _ARGUMENTS.items() if own.items() <= arguments.items())
    return next(levels, True)


def _field(config: Mapping[str, Any], name: str) -> Any:
    return config.get(field_name(name, frozenset(config)))


def without_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what it says of checkpointing."""
    fields = {field_name(name, frozenset(config)) for name in (CHECKPOINTING, KWARGS)}
    return {name: value for name, value in config.items() if name not in fields}


def period_of(config: Mapping[str, Any]) -> int:
    """Return after how many layers what is done with them repeats."""
    arguments = _field(config, KWARGS) if _field(config, CHECKPOINTING) else None
    return int((arguments or {}).get("every_n_layers") or 1)


def share_again(value: Any, layers: int) -> float:
    """Return the share of the layers that are computed again."""
    return -(-layers // EVERY.get(value, 1)) / layers if value else 0.0


def memory_rank(value: Any) -> int:
    """Return the place of a value among all, the one with the least memory first."""
    return LEANEST_FIRST.index(value)


def keeps_activations_away(values: Mapping[str, Any]) -> bool:
    """True if activations wait on the host."""
    return values.get("activation_offloading") is True or values.get(CHECKPOINTING) == OFFLOAD
