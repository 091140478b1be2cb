"""An answer as a notebook shows it. All text is escaped. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from autotune.errors import visible
from autotune.report.sections import Table

_LINES = '<div style="white-space: pre-wrap">{}</div>'
FIGURE = "#"
"""What ends the head of a column of figures."""


def answer_html(lines: Sequence[str], table: Table | None, below: Sequence[str]) -> str:
    """Return sentences, the first of them bold, and a table with what is said below it."""
    first, *rest = map(_text, lines)
    parts = [_LINES.format("\n".join([f"<b>{first}</b>", *rest]))]
    if table is not None:
        parts.append("".join(_table(table)))
    if below:
        parts.append(_LINES.format("\n".join(map(_text, below))))
    return "\n".join(parts)


def _table(table: Table) -> Iterator[str]:
    right = [head.endswith(FIGURE) for head in table.heads]
    heads = [head.removesuffix(FIGURE) for head in table.heads]
    caption = (
        table.caption and f'<caption style="text-align: left">{_text(table.caption)}</caption>'
    )
    yield f"<table>{caption}<thead>{_row('th', heads, right)}</thead><tbody>"
    for row in table.rows:
        yield _row("td", row, right)
    yield "</tbody></table>"


def _row(tag: str, cells: Iterable[str], right: Sequence[bool]) -> str:
    sides = ("right" if figure else "left" for figure in right)
    inner = "".join(
        f'<{tag} style="text-align: {side}">{_text(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{inner}</tr>"


def _text(text: str) -> str:
    return escape(visible(text))
