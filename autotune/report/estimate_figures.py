"""The plots that hold estimates against measurements, and values of knobs against each other.
Pure."""

from collections.abc import Sequence

from autotune.report.content import KnobWorth, Probe
from autotune.report.plots import GIB, ROW, Figure, axis, figure, marks, shown
from autotune.report.sections import speed_text


def expected_figure(probes: Sequence[Probe]) -> Figure | None:
    """Two plots side by side: speeds, and peaks."""
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
    """A row for each value, with its fastest measured and its fastest estimated."""
    rows = [(knob, worth) for knob in knobs for worth in knob.values]
    if not any(worth.measured or worth.estimated for _, worth in rows):
        return None
    data = []
    for name, color, symbol, values in (
        ("measured", "--accent", "circle", [worth.measured for _, worth in rows]),
        ("estimated", "--tone-2", "circle-open", [worth.estimated for _, worth in rows]),
    ):
        placed = [(place, value) for place, value in enumerate(values) if value]
        texts = [
            shown(f"{rows[n][0].name}: {rows[n][1].label}: {speed_text(value)} tokens/s, {name}")
            for n, value in placed
        ]
        y = [place for place, _ in placed]
        data.append(
            marks(name, color, symbol, x=[value for _, value in placed], y=y, hovertext=texts)
        )
    ticks = [shown(f"{knob.name}: {worth.label}"[:60]) for knob, worth in rows]
    edges = [n - 0.5 for n in range(1, len(rows)) if rows[n][0] is not rows[n - 1][0]]
    places = {"tickvals": list(range(len(rows))), "ticktext": ticks, "showgrid": False}
    return figure(
        data,
        150 + ROW * len(rows),
        xaxis=axis("tokens/s of the fastest", rangemode="tozero"),
        yaxis=axis("", range=[len(rows) - 0.5, -0.5], **places),
        shapes=[_edge(edge) for edge in edges],
    )


def _edge(y: float) -> Figure:
    """A line between the values of one knob and those of the next."""
    line = {"color": "--line", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
