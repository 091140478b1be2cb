"""Speed against memory, as the places of an SVG. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.server.pages.run_progress import Probe, RunProgress
from autotune.server.pages.words import batch_text, size_text, speed_text

WIDTH, HEIGHT = 640.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 16.0, 58.0
_GIB = 2**30


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
    """Round numbers within a span."""
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
