"""How far a plan is: the state that follows from its events. Pure."""

from dataclasses import dataclass
from typing import Any

from autotune.server.store.values import Event
from autotune.units import format_bytes


@dataclass
class PlanProgress:
    """A plan that is being made.

    Attributes:
        doing: what it does now.
        done, of: candidates that are estimated.
        best: the last event that something better was found, of which `knobs` are.
        last: the number of the last event.
    """

    doing: str = ""
    done: int = 0
    of: int = 0
    left_s: float | None = None
    best: dict[str, Any] | None = None
    improvements: int = 0
    last: int = 0

    def take(self, event: Event) -> None:
        """Go on by one event."""
        data, self.last = event.data, event.number
        match event.kind:
            case "surveying":
                self.doing = "Looking at the model and the data"
            case "measuring":
                self.doing = "Measuring how fast the device is"
            case "looking_at":
                self.doing = f"Looking at {data['what']}"
            case "starting_anew":
                self.doing = f"Starting anew: {data['reason']}"
            case "estimating":
                self.doing, self.done, self.of = "Estimating", 0, data["candidates"]
            case "estimated":
                self.done, self.of, self.left_s = data["done"], data["of"], data["left_s"]
                self.doing = self.doing or "Estimating"
            case "nothing_fits":
                limit = format_bytes(data["limit_bytes"])
                self.doing = f"Nothing fits in {limit}: looking for what would"
            case "improved":
                self.best, self.improvements = data, self.improvements + 1
