"""Memory by part: a bar against the device, and the points that sliders move between. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report.parts import ordered, tone_of

WIDTH = 1000.0
MICRO_BATCH, MAX_LENGTH = "per_device_train_batch_size", "max_length"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a bar.

    Attributes:
        x, width: of `WIDTH`.
        tone: the number of its colour.
    """

    name: str
    bytes: int
    x: float
    width: float
    tone: int


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What a peak is made of, against a limit.

    Attributes:
        scale_bytes: what the whole width is.
        mark: where the limit is; None: it is not known.
    """

    segments: tuple[Segment, ...]
    total_bytes: int
    limit_bytes: int | None
    scale_bytes: float
    mark: float | None

    @property
    def fits(self) -> bool:
        """True if it is within the limit."""
        return self.limit_bytes is None or self.total_bytes <= self.limit_bytes


def memory_bar(
    parts: Mapping[str, int], total: int, limit: int | None, most: Iterable[int] = ()
) -> Bar:
    """Return the bar of an estimate.

    Args:
        most: other peaks that the scale has to have room for.
    """
    scale = max(total, limit or 0, 1, *most) * (1.0 if limit and limit >= total else 1.04)
    segments, x = [], 0.0
    for name in ordered(parts):
        width = WIDTH * max(parts[name], 0) / scale
        segments.append(
            Segment(
                name=name,
                bytes=parts[name],
                x=round(x, 2),
                width=round(width, 2),
                tone=tone_of(name),
            )
        )
        x += width
    mark = None if limit is None else round(WIDTH * limit / scale, 2)
    return Bar(
        segments=tuple(segments), total_bytes=total, limit_bytes=limit, scale_bytes=scale, mark=mark
    )


@dataclass(frozen=True, kw_only=True)
class Slides:
    """What the sliders move between.

    Attributes:
        whole: whether it is estimated by length; else only by micro-batch.
        points: each as the script reads it.
    """

    lengths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    limit_bytes: int
    points: tuple[Mapping[str, Any], ...]
    length: int
    micro_batch: int
    whole: bool

    @property
    def bar(self) -> Bar:
        """The bar to begin with, with all parts that any point has."""
        start = self._start()
        names = {name for point in self.points for name in point["parts"]}
        parts = {name: start["parts"].get(name, 0) for name in names}
        most = max(point["peak_memory_bytes"] for point in self.points)
        return memory_bar(parts, start["peak_memory_bytes"], self.limit_bytes, [most])

    def _start(self) -> Mapping[str, Any]:
        def distance(point: Mapping[str, Any]) -> tuple[int, int]:
            length, size = point["max_length"], point["micro_batch"]
            return abs(size - self.micro_batch), abs(length - self.length)

        return min(self.points, key=distance)


def slides_of(result: Mapping[str, Any], lengths: Mapping[str, Any] | None) -> Slides | None:
    """Return the sliders of a plan's result; None: there is nothing to move between."""
    choices: Sequence[Mapping[str, Any]] = result["choices"]
    chosen = result["answer"] or (choices[0] if choices else None)
    if chosen is None:
        return None
    if lengths and lengths.get("schema") == 1 and lengths["points"]:
        points, limit = lengths["points"], lengths["limit_bytes"]
    else:
        lengths = None
        points, limit = _by_micro_batch(choices), result["device"]["limit_bytes"]
    if not points:
        return None
    sizes = sorted({point["micro_batch"] for point in points})
    wanted = chosen["knobs"].get(MAX_LENGTH) or max(point["max_length"] for point in points)
    size = chosen["knobs"].get(MICRO_BATCH)
    return Slides(
        lengths=tuple(sorted({point["max_length"] for point in points})),
        micro_batches=tuple(sizes),
        limit_bytes=limit,
        points=tuple(points),
        length=wanted,
        micro_batch=size if size in sizes else sizes[0],
        whole=lengths is not None,
    )


def _by_micro_batch(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the best choice of each micro-batch, as points of one length."""
    found: dict[int, dict[str, Any]] = {}
    for choice in choices:
        size = choice["knobs"].get(MICRO_BATCH)
        if size is not None and not choice["at_least"] and size not in found:
            found[size] = {
                "max_length": choice["knobs"].get(MAX_LENGTH) or 0,
                "micro_batch": size,
                **{name: choice[name] for name in ("peak_memory_bytes", "p_oom", "parts")},
                "tokens_per_s": choice["tokens_per_s"],
            }
    return list(found.values())
