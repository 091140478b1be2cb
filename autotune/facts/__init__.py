"""The facts: what is true before any probe."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts, DeviceProcess
from autotune.facts.host import HostFacts
from autotune.facts.model import ModelFacts, model_from_plain
from autotune.facts.stack import StackFacts


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The model, the data, the device and the stack; the host, where the device is on this machine
    or another's memory is known."""

    model: ModelFacts
    data: DataFacts
    device: DeviceFacts
    stack: StackFacts
    host: HostFacts | None = None

    def plain(self) -> dict[str, Any]:
        """The facts as JSON data."""
        return asdict(self)


def facts_from_plain(data: dict[str, Any]) -> Facts:
    """The facts that `Facts.plain` gave as JSON data.

    Raises:
        KeyError, TypeError: the data are of another shape or type: they go into scripts, too.
    """
    device = dict(data["device"])
    device["processes"] = tuple(DeviceProcess(**process) for process in device["processes"])
    device["peers"] = tuple(device.get("peers", ()))
    if device["capability"] is not None:
        device["capability"] = tuple(device["capability"])
    lists = {name: tuple(data["stack"][name]) for name in ("absent", "training_fields")}
    stack = {**data["stack"], **lists}
    facts = Facts(
        model=model_from_plain(data["model"]),
        data=DataFacts(**data["data"]),
        device=DeviceFacts(**device),
        stack=StackFacts(**stack),
        host=HostFacts(**host) if (host := data.get("host")) else None,
    )
    for part in (facts.model, facts.data, facts.device, facts.stack, facts.host):
        for name, kind in get_type_hints(type(part)).items() if part is not None else ():
            if not _fits(getattr(part, name), kind):
                raise TypeError(f"`{name}` of {type(part).__name__} has a value of another type")
    return facts


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; a number must be finite."""
    whole, parts = get_origin(kind) or kind, get_args(kind)
    if whole is UnionType:
        return any(_fits(value, part) for part in parts)
    if whole is tuple:
        return isinstance(value, tuple) and all(_fits(one, parts[0]) for one in value)
    if whole in (dict, Mapping):
        entries = value.items() if isinstance(value, dict) else ()
        same = all(_fits(key, parts[0]) and _fits(one, parts[1]) for key, one in entries)
        return isinstance(value, dict) and same
    if whole in (int, float):
        wanted = int if whole is int else int | float
        return isinstance(value, wanted) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, whole)
