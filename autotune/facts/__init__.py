"""The facts: what is true before any probe."""

from dataclasses import dataclass
from typing import Any

from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts
from autotune.facts.host import HostFacts
from autotune.facts.model import ModelFacts
from autotune.facts.stack import StackFacts
from autotune.plain_data import from_plain, to_plain


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
        data: dict[str, Any] = to_plain(self)
        return data


def facts_from_plain(data: Any) -> Facts:
    """Return the facts that `Facts.plain` gave as JSON data.

    Raises:
        ValueError: the data are of another shape or type: they go into scripts, too.
    """
    return from_plain(Facts, data)
