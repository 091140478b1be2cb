"""The plots that hold estimates against measurements, and values of knobs against each other.
Pure."""

from collections.abc import Sequence

from autotune.report.content import KnobWorth, Probe
from autotune.report.plots import GIB, ROW, Figure, axis, figure, marks, shown
from autotune.report.sections import speed_text

_LABEL = 24
"""Characters of a value beside its marks."""


def expected_figure(probes: Sequence[Probe]) -> Figure | None:
    """Return two plots side by side: speeds, and peaks."""
    well = [probe for probe in probes if probe.outcome == "ok"]
    speeds = [
        (p, p.expected.tokens_per_s, p.tokens_per_s, "tokens/s")
        for p in well
        if p.expected and p.expected.tokens_per_s and p.tokens_per_s
    ]
    peaks = [
        (p, p.expected.peak_memory_bytes / GIB, p.peak_memory_bytes / GIB, "GiB")
        for p in well
        if p.expected and p.peak_memory_bytes
    ]
    data: list[Figure] = []
    for place, points in (("", speeds), ("2", peaks)):
        if not points:
            continue
        data.append(_diagonal([value for _, *pair, _ in points for value in pair], place))
        data.append(
            marks(
                "speed" if not place else "peak",
                "--accent" if not place else "--tone-3",
                "circle",
                x=[estimated for _, estimated, _, _ in points],
                y=[measured for _, _, measured, _ in points],
                xaxis=f"x{place}",
                yaxis=f"y{place}",
                showlegend=False,
                hovertext=[
                    f"{shown(f'probe {p.number}: {p.candidate}')}<br>"
                    f"{estimated:.4g} {unit} estimated, {measured:.4g} measured"
                    for p, estimated, measured, unit in points
                ],
            )
        )
    if not data:
        return None
    return figure(
        data,
        380,
        grid={"rows": 1, "columns": 2, "pattern": "independent"},
        xaxis=axis("tokens/s, estimated"),
        yaxis=axis("tokens/s, measured"),
        xaxis2=axis("peak in GiB, estimated"),
        yaxis2=axis("peak in GiB, measured"),
    )


def _diagonal(values: Sequence[float], place: str) -> Figure:
    ends = [min(values), max(values)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "as estimated",
        "x": ends,
        "y": ends,
        "xaxis": f"x{place}",
        "yaxis": f"y{place}",
        "line": {"color": "--muted", "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def worth_figure(knobs: Sequence[KnobWorth]) -> Figure | None:
    """Below the name of each knob a row for each value, with its fastest measured and its fastest
    estimated."""
    rows = [(knob, worth) for knob in knobs for worth in (None, *knob.values)]
    values = [(place, knob, worth) for place, (knob, worth) in enumerate(rows) if worth]
    if not any(worth.measured or worth.estimated for _, _, worth in values):
        return None
    data = []
    for name, color, symbol in (
        ("measured", "--accent", "circle"),
        ("estimated", "--tone-2", "circle-open"),
    ):
        placed = [
            (place, speed, f"{knob.name}: {worth.label}")
            for place, knob, worth in values
            if (speed := getattr(worth, name))
        ]
        texts = [
            shown(f"{what}: {speed_text(speed)} tokens/s, {name}") for _, speed, what in placed
        ]
        x, y = [speed for _, speed, _ in placed], [place for place, _, _ in placed]
        data.append(marks(name, color, symbol, x=x, y=y, hovertext=texts))
    heads = [place for place, (_, worth) in enumerate(rows) if worth is None]
    places = {
        "tickvals": [place for place, _, _ in values],
        "ticktext": [shown(_short(worth.label)) for _, _, worth in values],
        "showgrid": False,
    }
    return figure(
        data,
        150 + ROW * len(rows),
        xaxis=axis("tokens/s of the fastest", rangemode="tozero"),
        yaxis=axis("", range=[len(rows) - 0.5, -0.5], **places),
        shapes=[_edge(place - 0.5) for place in heads[1:]],
        annotations=[_head(place, rows[place][0].name) for place in heads],
    )


def _short(label: str) -> str:
    """Return a value that leaves room for its marks on a telephone; what it is in full a mark
    says."""
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


def _head(y: int, name: str) -> Figure:
    """Return the name of a knob above its values."""
    place = {"xref": "paper", "x": 0, "xanchor": "left", "y": y}
    return {**place, "text": shown(name), "showarrow": False}


def _edge(y: float) -> Figure:
    """Return a line between the values of one knob and those of the next."""
    line = {"color": "--line", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
