"""The facts: what is true before any probe."""

from dataclasses import asdict, dataclass
from typing import Any

from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts, DeviceProcess
from autotune.facts.host import HostFacts
from autotune.facts.model import ModelFacts, model_from_plain
from autotune.facts.stack import StackFacts
from autotune.value_types import checked


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
        """Return the facts as JSON data."""
        return asdict(self)


def facts_from_plain(data: dict[str, Any]) -> Facts:
    """Return the facts that `Facts.plain` gave as JSON data.

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
    return checked(facts, Facts)
