"""How far a run is: the state that follows from its events. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.run.launch_stages import STAGE_TEXTS
from autotune.server.store.values import Event

LINES = 400
"""Lines of the log that a page shows at first."""


@dataclass(frozen=True)
class Probe:
    """A probe: what it trains, and, once it has ended, what it measured."""

    number: int
    knobs: Mapping[str, Any]
    measurement: Mapping[str, Any] | None
    event: int
    """The number of the event that brought it."""

    @property
    def outcome(self) -> str:
        """How it ended."""
        return "running" if self.measurement is None else str(self.measurement["outcome"])

    @property
    def tokens_per_s(self) -> float | None:
        """Measured, where it came to its end."""
        done = self.measurement is not None and self.outcome == "ok"
        return self.measurement["tokens_per_s"] if done and self.measurement else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """Measured."""
        return None if self.measurement is None else self.measurement["peak_memory_bytes"]

    @property
    def failed(self) -> bool:
        """True if it went wrong."""
        return self.outcome not in ("ok", "stopped", "running", "interrupted")


@dataclass
class RunProgress:
    """A run that goes on.

    Attributes:
        headroom: the share of the limit that a recommendation leaves free.
        shown: knobs that vary.
        ruled_out: reasons, and how many candidates each rules out.
        repeats: probes that belong to a verification, which no budget counts.
        stages: of the verification: what is done, and how long it took.
    """

    headroom: float = 0.1
    doing: str = ""
    surveyed: dict[str, Any] | None = None
    done: int = 0
    of: int = 0
    left_s: float | None = None
    probes: dict[int, Probe] = field(default_factory=dict)
    ruled_out: dict[str, int] = field(default_factory=dict)
    repeats: set[int] = field(default_factory=set)
    stages: list[tuple[str, float]] = field(default_factory=list)
    verification: dict[str, Any] | None = None
    verifying: bool = False
    stopped: str = ""
    lines: list[tuple[int, str]] = field(default_factory=list)
    last: int = 0

    def take(self, event: Event) -> None:
        """Go on by one event."""
        data, self.last = event.data, event.number
        match event.kind:
            case "line":
                self.lines.append((event.number, str(data.get("text", ""))))
                del self.lines[:-LINES]
            case "surveying":
                self.doing = "Looking at the model, the data and the device"
            case "surveyed":
                self.surveyed, self.doing = data, "Estimating what candidates take"
            case "estimating":
                self.doing, self.done, self.of = "Estimating", 0, data["candidates"]
            case "estimated":
                self.done, self.of, self.left_s = data["done"], data["of"], data["left_s"]
            case "ruled_out":
                self.ruled_out = {why: n for why, n in data["reasons"].items() if n}
            case "probing" | "probed":
                self._take_probe(event)
            case "measuring":
                self.doing = "Measuring how fast the device is"
            case _:
                self._take_end(event.kind, data)

    def _take_probe(self, event: Event) -> None:
        data = event.data
        number, knobs, measurement = data["probe"], data["knobs"], data.get("measurement")
        if self.verifying:
            self.repeats.add(number)
        self.probes[number] = Probe(number, knobs, measurement, event.number)
        self.doing = "Looking for the next probe" if measurement else f"Probe {number} runs"

    def _take_end(self, kind: str, data: Mapping[str, Any]) -> None:
        match kind:
            case "stopped":
                self.stopped, self.doing = data["reason"], "The search has ended"
            case "settling":
                self.doing = "Measuring the first ones again"
            case "verifying":
                self.stages, self.verification, self.verifying = [], None, True
                self.doing = f"Verifying the bundle of probe {data['probe']} by launching it"
            case "verification_stage":
                self.stages.append((STAGE_TEXTS.get(data["stage"], data["stage"]), data["seconds"]))
            case "verified":
                self.verification, self.verifying = dict(data), False
                self.doing = "Verified" if data["verified"] else "The verification failed"
            case "trying":
                self.doing = f"Trying what would make it fit: {data['text']}"
            case "looking_at":
                self.doing = f"Looking at {data['what']}"

    @property
    def limit_bytes(self) -> int | None:
        """What a process may take."""
        return self.surveyed["limit_bytes"] if self.surveyed else None

    @property
    def allowed_bytes(self) -> float | None:
        """What a recommendation may take."""
        return None if self.limit_bytes is None else self.limit_bytes * (1 - self.headroom)

    @property
    def shown(self) -> list[str]:
        """The knobs that vary."""
        return self.surveyed["free_knobs"] if self.surveyed else []

    @property
    def finished(self) -> list[Probe]:
        """Probes that have ended, in their order."""
        return [probe for probe in self.probes.values() if probe.measurement is not None]

    @property
    def searched(self) -> int:
        """How many of them the budget counts."""
        return sum(probe.number not in self.repeats for probe in self.finished)

    @property
    def best(self) -> Probe | None:
        """The fastest that leaves the headroom free."""
        most = self.allowed_bytes or float("inf")
        stable = [p for p in self.finished if p.tokens_per_s and (p.peak_memory_bytes or 0) <= most]
        return max(stable, key=lambda probe: probe.tokens_per_s or 0.0, default=None)

    @property
    def probing_s(self) -> float:
        """What the probes took together."""
        return sum(float(p.measurement["seconds"]) for p in self.finished if p.measurement)
