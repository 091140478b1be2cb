"""The plots of a report as plotly reads them, by the name of their section. Pure.

Colours are names of the page's custom properties (`--accent`), which its script looks up: so they
follow light and dark. Texts are escaped for plotly, which reads a few tags.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.errors import in_one_line
from autotune.report.content import Content, Memory, Probe, Standing
from autotune.report.parts import ordered, tone_of
from autotune.report.sections import speed_text
from autotune.units import format_bytes

Figure = dict[str, Any]
GIB = 2**30
ROW = 34
"""Pixels of a row of bars or marks."""


def shown(text: str) -> str:
    """Return a text that plotly shows as it is."""
    return html.escape(in_one_line(text), quote=False)


def axis(title: str, **fields: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {"title": {"text": title}, "automargin": True, **fields}


def figure(data: Sequence[Figure], height: int, **layout: Any) -> Figure:
    """Return a figure of so many pixels, as wide as the page lets it be."""
    return {"data": list(data), "layout": {"height": height, **layout}}


def marks(name: str, color: str, symbol: str, **fields: Any) -> Figure:
    """Return a trace of marks."""
    marker = {"color": color, "symbol": symbol, "size": 15 if symbol == "star" else 10}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "marker": marker,
        "hoverinfo": "text",
        "cliponaxis": False,  # those at 0 are seen whole
        **fields,
    }


def uprights(sizes: Sequence[tuple[int, str, str, str]]) -> dict[str, Any]:
    """Return lines at sizes, each with its name at the top."""
    shapes, names = [], []
    for size, name, color, dash in sizes:
        place = {"xref": "x", "yref": "paper"}
        x = size / GIB
        line = {"color": color, "width": 1.5, "dash": dash}
        shapes.append({"type": "line", **place, "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line})
        names.append(
            {**place, "x": x, "y": 1, "text": name, "showarrow": False, "yanchor": "bottom",
             "font": {"color": color}}
        )  # fmt: skip
    return {"shapes": shapes, "annotations": names}


_STANDINGS: Mapping[Standing, tuple[str, str, str]] = {
    "ok": ("measured", "--accent", "circle"),
    "recommended": ("recommended", "--good", "star"),
    "over headroom": ("over the headroom", "--warn", "diamond"),
    "failed": ("failed", "--bad", "x"),
    "cut short": ("cut short", "--muted", "triangle-up"),
}
"""What a kind of probe is called in a legend, its colour and its mark."""


def figures(content: Content) -> dict[str, Figure]:
    """Return the figures by the name of their section; those without data are left out."""
    found = {
        "candidates": _speed_and_memory(content),
        "memory": _memory(content.memory, content.limit_bytes),
    }
    return {name: plot for name, plot in found.items() if plot is not None}


def _by_standing(probes: Sequence[Probe]) -> Iterator[tuple[Standing, list[Probe]]]:
    for standing in _STANDINGS:
        group = [probe for probe in probes if probe.standing == standing]
        if group:
            yield standing, group


def _hover(probe: Probe) -> str:
    texts = [f"probe {probe.number}: {probe.candidate}"]
    if probe.tokens_per_s is not None:
        speed = speed_text(probe.tokens_per_s, probe.uncertainty)
        texts.append(f"{speed} tokens/s, measured")
    if probe.standing == "over headroom":
        texts.append("over the headroom")
    elif probe.outcome != "ok":
        texts.append(f"{probe.outcome}: {probe.reason}")
    if probe.least_bytes:
        texts.append(f"needs at least {format_bytes(probe.least_bytes)}")
    elif probe.peak_memory_bytes:
        texts.append(f"peak {format_bytes(probe.peak_memory_bytes)}, measured")
    return "<br>".join(shown(text) for text in texts)


def _speed_and_memory(content: Content) -> Figure | None:
    placed = [p for p in content.probes if p.peak_memory_bytes or p.least_bytes]
    if not any(p.tokens_per_s for p in placed):
        return None
    data = []
    for standing, group in _by_standing(placed):
        name, color, symbol = _STANDINGS[standing]
        x = [(p.least_bytes or p.peak_memory_bytes or 0) / GIB for p in group]
        y = [p.tokens_per_s or 0.0 for p in group]
        texts = [_hover(p) for p in group]
        data.append(marks(name, color, symbol, x=x, y=y, hovertext=texts))
    sizes = [(content.allowed_bytes, "headroom", "--warn", "dash")]
    if content.limit_bytes != content.allowed_bytes:
        sizes.append((content.limit_bytes, "limit", "--bad", "dot"))
    return figure(
        data,
        420,
        xaxis=axis("peak memory, GiB", rangemode="normal"),
        yaxis=axis("tokens/s", rangemode="tozero"),
        **uprights(sizes),
    )


def _memory(memory: Sequence[Memory], limit_bytes: int) -> Figure | None:
    if not memory:
        return None
    names = ordered({name for candidate in memory for name in candidate.parts})
    places = list(range(len(memory)))
    data: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": shown(name),
            "x": [c.parts.get(name, 0) / GIB for c in memory],
            "y": places,
            "marker": {"color": f"--tone-{tone_of(name)}"},
            "hoverinfo": "text",
            "hovertext": [
                shown(f"{c.what}, {name}: {format_bytes(c.parts.get(name, 0))}, estimated")
                for c in memory
            ],
        }
        for name in names
    ]
    measured = [(place, c) for place, c in zip(places, memory, strict=True) if c.measured_bytes]
    if measured:
        data.append(
            marks(
                "peak, measured",
                "--surface",
                "diamond",
                x=[(c.measured_bytes or 0) / GIB for _, c in measured],
                y=[place for place, _ in measured],
                hovertext=[
                    shown(f"{c.what}: peak {format_bytes(c.measured_bytes or 0)}, measured")
                    for _, c in measured
                ],
            )
        )
        data[-1]["marker"] |= {"size": 13, "line": {"color": "--text", "width": 2}}
    names_of = [shown(c.what) for c in memory]
    return figure(
        data,
        190 + 2 * ROW * len(memory),
        barmode="relative",
        xaxis=axis("GiB"),
        yaxis=axis("", tickvals=places, ticktext=names_of, autorange="reversed"),
        **uprights([(limit_bytes, "limit", "--bad", "dot")]),
    )
