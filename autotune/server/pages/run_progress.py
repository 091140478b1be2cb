"""How far a run is: the state that follows from its events, and its plot of speed against memory.

Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.run.bundle_launch import STAGE_TEXTS
from autotune.server.pages.render import batch_text, size_text, speed_text
from autotune.server.store.values import Event

LINES = 400
"""Lines of the log that a page shows at first."""
WIDTH, HEIGHT = 640.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 16.0, 58.0
_GIB = 2**30


@dataclass(frozen=True)
class Probe:
    """A probe: its knobs, and, once it has ended, its measurement."""

    number: int
    knobs: Mapping[str, Any]
    measurement: Mapping[str, Any] | None
    event: int
    """The number of the event that brought it."""

    @property
    def outcome(self) -> str:
        """The outcome; `running` until it has ended."""
        return "running" if self.measurement is None else str(self.measurement.get("outcome"))

    @property
    def tokens_per_s(self) -> float | None:
        """The measured speed, where it completed."""
        done = self.measurement is not None and self.outcome == "ok"
        return self.measurement["tokens_per_s"] if done and self.measurement else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """The measured peak."""
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
        ruled_out: the number of candidates that each reason rules out.
        repeats: probes of a verification, which no budget counts.
        stages: finished stages of the verification, with their seconds.
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
                math.isfinite(data["limit_bytes"])
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
        number, knobs = int(data["probe"]), dict(data["knobs"])
        measurement = data.get("measurement")
        if measurement:  # a worker may have made it up
            numbers = (measurement[name] for name in ("tokens_per_s", "peak_memory_bytes"))
            math.fsum([measurement["seconds"], *(n for n in numbers if n is not None)])
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
        """The memory that a process may take."""
        return self.surveyed["limit_bytes"] if self.surveyed else None

    @property
    def allowed_bytes(self) -> float | None:
        """The memory that a recommendation may take."""
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
        """The number of finished probes that the budget counts."""
        return sum(probe.number not in self.repeats for probe in self.finished)

    @property
    def best(self) -> Probe | None:
        """The fastest that leaves the headroom free."""
        most = self.allowed_bytes or float("inf")
        stable = [p for p in self.finished if p.tokens_per_s and (p.peak_memory_bytes or 0) <= most]
        return max(stable, key=lambda probe: probe.tokens_per_s or 0.0, default=None)

    @property
    def probing_s(self) -> float:
        """The time of all finished probes together."""
        return sum(float(p.measurement["seconds"]) for p in self.finished if p.measurement)


@dataclass(frozen=True)
class Tick:
    """A mark of an axis."""

    place: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A probe in the plot."""

    x: float
    y: float
    kind: str
    """`best`, `ok`, or `failed`."""
    text: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot to be drawn."""

    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit: float | None
    allowed: float | None
    summary: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def plot_of(progress: RunProgress) -> Plot | None:
    """Return the plot of a run's probes; None: nothing was measured yet."""
    placed = [p for p in progress.finished if p.peak_memory_bytes and (p.tokens_per_s or p.failed)]
    if not placed:
        return None
    limit = progress.limit_bytes
    peaks = [(probe.peak_memory_bytes or 0) / _GIB for probe in placed]
    low, high = min(peaks), max(*peaks, (limit or 0) / _GIB)
    low = max(0.0, low - 0.15 * (high - low or high))
    high += 0.04 * (high - low or 1)
    top = 1.12 * max((probe.tokens_per_s or 0.0 for probe in placed), default=1.0) or 1.0

    def x(gib: float) -> float:
        return round(_LEFT + (WIDTH - _RIGHT - _LEFT) * (gib - low) / (high - low), 1)

    def y(speed: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * speed / top, 1)

    best = progress.best
    dots = [
        Dot(x((p.peak_memory_bytes or 0) / _GIB), y(p.tokens_per_s or 0.0), _kind(p, best),
            _text(p), p.number)
        for p in placed
    ]  # fmt: skip
    allowed = progress.allowed_bytes
    return Plot(
        dots=tuple(sorted(dots, key=lambda dot: dot.kind == "best")),
        x_ticks=tuple(Tick(x(value), _number(value)) for value in ticks(low, high, 5)),
        y_ticks=tuple(Tick(y(value), _speed(value)) for value in ticks(0.0, top, 4)),
        limit=None if limit is None else x(limit / _GIB),
        allowed=None if allowed is None or allowed / _GIB < low else x(allowed / _GIB),
        summary=_summary(placed, best),
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return round numbers within a span."""
    raw = (high - low) / about
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _kind(probe: Probe, best: Probe | None) -> str:
    if best is not None and probe.number == best.number:
        return "best"
    return "ok" if probe.tokens_per_s else "failed"


def _text(probe: Probe) -> str:
    speed = speed_text(probe.tokens_per_s) or probe.outcome
    peak = size_text(probe.peak_memory_bytes)
    return f"probe {probe.number}: {batch_text(probe.knobs)}, {speed}, {peak}"


def _summary(placed: Sequence[Probe], best: Probe | None) -> str:
    text = f"Speed against peak memory of {len(placed)} probes"
    return text if best is None else f"{text}; the best is {_text(best)}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _speed(value: float) -> str:
    return f"{value / 1000:.4g}k" if value >= 1000 else f"{value:.4g}"
