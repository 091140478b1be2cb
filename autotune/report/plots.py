"""What all plots of a report are made of, as plotly reads them. Pure.

Colours are names of the page's custom properties (`--accent`), which its script looks up: so they
follow light and dark. Texts are escaped for plotly, which reads a few tags.
"""

import html
from collections.abc import Sequence
from typing import Any

from autotune.errors import in_one_line

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
