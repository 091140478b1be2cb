"""Tables of candidates and probes, for people. Pure: values in, rich renderables out."""

from rich.markup import escape
from rich.table import Table

from autotune.cli.views.console import PlainConsole
from autotune.probe.protocol import Measurement
from autotune.report import sections
from autotune.report.content import Content
from autotune.report.sections import NOTHING
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate, value_label
from autotune.units import format_bytes, format_seconds

LEAST = 16
"""Columns that a candidate's words have at least."""
_ASCII = str.maketrans({"\N{PLUS-MINUS SIGN}": "+-", NOTHING: ""})


def report_table(table: sections.Table, width: int) -> Table:
    """Return a table of a report: a candidate's words are cut to fit, and left out where there is
    no room for them.

    Args:
        width: columns there are.
    """
    rows = [[cell.translate(_ASCII) for cell in row] for row in table.rows]
    heads = [head.removesuffix("#") for head in table.heads]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    words = heads.index("candidate")
    room = width - sum(widths) + widths[words] - 2 * (len(heads) - 1)
    shown = [place for place in range(len(heads)) if place != words or room >= LEAST]
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place in shown:
        made.add_column(
            heads[place],
            justify="right" if table.heads[place].endswith("#") else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=room if place == words else None,
        )
    for row in rows:
        made.add_row(*(escape(row[place]) for place in shown))
    return made


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

    parts = {section.name: section for section in sections.sections(content)}
    for name in ("candidates", "expected"):
        for table in parts[name].tables:
            console.print(report_table(table, console.width))
            say()
    if content.shared:
        say(f"all: {content.shared}")
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
