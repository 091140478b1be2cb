"""Tables of candidates and probes, for people. Pure: values in, rich renderables out."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from autotune.cli.views.console import PlainConsole
from autotune.probe.protocol import Measurement
from autotune.report.content import Content, Line
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate, value_label
from autotune.units import format_bytes, format_seconds

LEAST = 16
"""Columns that a candidate's words have at least."""
SIGNS = {
    "~": "~: estimated; the other speeds are measured",
    ">": ">: at least; it ran out of memory before its peak",
    ",": "of several probes of one candidate: their mean speed, the highest peak",
}


def lines_table(lines: Sequence[Line], width: int) -> Table:
    """Return a row for each candidate that was probed: one speed, measured or, with `~`, estimated.

    Args:
        width: columns there are; the candidate's words are cut to fit.
    """
    heads = ("probe", "candidate", "tokens/s", "peak", "outcome")
    rows = [(_numbers(line), line.candidate, *_cells(line), line.outcome) for line in lines]
    taken = sum(max(map(len, column)) for column in zip(heads, *rows, strict=True)) - max(
        (len(line.candidate) for line in lines), default=len("candidate")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in heads:
        right = name in ("probe", "tokens/s", "peak")
        room = max(width - taken - 2 * (len(heads) - 1), LEAST) if name == "candidate" else None
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=room,
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _numbers(line: Line) -> str:
    return ",".join(map(str, line.numbers))


def _cells(line: Line) -> tuple[str, str]:
    """Return the speed and the peak of a candidate."""
    peak, least = line.peak_memory_bytes, line.least_bytes
    size = f">{format_bytes(least)}" if least else format_bytes(peak) if peak else ""
    if line.tokens_per_s is not None:
        noise = line.uncertainty
        error = "" if noise is None else f" +-{100 * noise:.1f}%"
        return f"{line.tokens_per_s:.0f}{error}", size
    speed = None if line.expected is None else line.expected.tokens_per_s
    return "" if speed is None else f"~{speed:.0f}", size


def signs(lines: Sequence[Line]) -> list[str]:
    """Return what the signs of that table mean, of those that it has."""
    cells = [(*_cells(line), _numbers(line)) for line in lines]
    texts = {
        "~": any(speed.startswith("~") for speed, _, _ in cells),
        ">": any(size.startswith(">") for _, size, _ in cells),
        ",": any("," in numbers for _, _, numbers in cells),
    }
    return [SIGNS[sign] for sign, is_there in texts.items() if is_there]


def expected_table(lines: Sequence[Line]) -> Table | None:
    """Return what was expected beside what was measured; None: there is nothing to compare."""
    rows = [
        [
            str(line.numbers[0]),
            "" if line.tokens_per_s is None else f"{line.tokens_per_s:.0f}",
            "" if expected.tokens_per_s is None else f"{expected.tokens_per_s:.0f}",
            "" if line.peak_memory_bytes is None else format_bytes(line.peak_memory_bytes),
            format_bytes(expected.peak_memory_bytes),
        ]
        for line in lines
        if (expected := line.expected) is not None
    ]
    if not rows:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("probe", "tokens/s", "expected tokens/s", "peak", "expected peak"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def measurement_table(candidate: Candidate, measurement: Measurement) -> Table:
    """Return one probe in full."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("candidate", escape(_all_knobs(candidate)))
    table.add_row("outcome", f"{measurement.outcome}: {escape(measurement.reason)}")
    for name, value in measurement.plain().items():
        if name in {"outcome", "reason", "failure", "stages_s", "processes"} or value is None:
            continue
        table.add_row(name, _figure(name, value))
    for stage, seconds in measurement.stages_s.items():
        table.add_row(f"stage {stage}", format_seconds(seconds))
    return table


def _all_knobs(candidate: Candidate) -> str:
    return ", ".join(f"{n}={value_label(v)}" for n, v in sorted(candidate.knobs.items()))


def _figure(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s") and not name.endswith("per_s") or name == "seconds":
        return format_seconds(value)
    if name in {"relative_uncertainty", "padding_share", "processor_wait_share"}:
        return f"{100 * value:.1f}%"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_space(space: SearchSpace, console: PlainConsole) -> None:
    """Print the knobs of a bound space, and what is excluded from it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("knob", "kind", "values", "why"):
        table.add_column(name, overflow="fold")
    for knob in space.knobs:
        values = " | ".join(value_label(value) for value in knob.values)
        table.add_row(escape(knob.name), knob.kind, escape(values), escape(knob.why))
    console.print(table)
    console.print(f"\n{len(space.candidates)} candidates", highlight=False)
    for exclusion in space.exclusions:
        console.print(
            f"excluded {exclusion.count}: {exclusion.reason}", highlight=False, markup=False
        )
    for note in space.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def print_report(content: Content, console: PlainConsole) -> None:
    """Print what a run measured and recommends, within the console's width."""

    def say(text: str = "") -> None:
        # A terminal gets whole words; a file gets whole lines.
        soft = not console.is_terminal
        console.print(text, highlight=False, markup=False, soft_wrap=soft)

    console.print(lines_table(content.lines, console.width))
    for line in signs(content.lines):
        say(line)
    if content.shared:
        say(f"all: {content.shared}")
    expected = expected_table(content.lines)
    if expected is not None:
        say()
        console.print(expected)
    for line in [
        *content.compared,
        *content.unprobed,
        *content.skipped,
        *content.said,
        *(f"note: {note}" for note in content.notes),
    ]:
        say(line)
    chosen = content.chosen
    say()
    if chosen is None or not chosen.recommended:
        say("no recommendation yet")
        return
    say(f"recommended: probe {chosen.probe}")
    for reason in chosen.reasons:
        say(f"- {reason}")
    say(chosen.verification)
    say(f"bundle: {chosen.bundle}")
