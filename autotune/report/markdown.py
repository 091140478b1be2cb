"""A report as Markdown. Pure."""

import re
from collections.abc import Iterator, Sequence

from autotune.errors import in_one_line, visible
from autotune.report.content import Chosen, Content
from autotune.report.sections import Section, Table, sections

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$&!])")
_FENCES = re.compile(r"`{3,}")


def markdown_report(content: Content) -> str:
    """Return the whole report, in GitHub's dialect."""
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield f"# {text_of(content.title)}, {text_of(content.method)}: what to use"
    yield from _paragraphs([content.headline, *content.absent])
    yield from _paragraphs([f"damaged: {note}" for note in content.damaged])
    if content.chosen is not None:
        yield from _chosen(content.chosen)
    for section in sections(content):
        yield from _section(section)
    yield from ["", "## How to repeat it"]
    for what, command in content.commands:
        yield from ["", f"To {text_of(what)}:", *_block(command, "bash")]
    if content.job:
        yield from ["", "The job:", *_block(content.job, "yaml")]


def _chosen(chosen: Chosen) -> Iterator[str]:
    title = "Recommended" if chosen.recommended else "Best so far"
    yield from ["", f"## {title}: probe {chosen.probe}", ""]
    yield from (f"- {text_of(reason)}" for reason in (*chosen.reasons, chosen.verification))
    if chosen.bundle is not None:
        yield f"- bundle: {text_of(chosen.bundle)}"
    if chosen.knobs:
        yield from _table(Table(caption="Its knobs", heads=("knob", "value"), rows=chosen.knobs))


def _section(section: Section) -> Iterator[str]:
    yield from ["", f"## {section.title}"]
    yield from _paragraphs(section.text)
    for table in section.tables:
        yield from _table(table)


def _paragraphs(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from ["", text_of(text)]


def _table(table: Table) -> Iterator[str]:
    yield from ["", f"{text_of(table.caption)}:", ""]
    yield _row([text_of(head.removesuffix("#")) for head in table.heads])
    yield _row(["---:" if head.endswith("#") else "---" for head in table.heads])
    yield from (_row([text_of(cell) for cell in row]) for row in table.rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text_of(text: str) -> str:
    """Return a text in one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", in_one_line(text))


def _block(text: str, language: str) -> list[str]:
    """Return a fenced block, whose fence is longer than any in it."""
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCES.findall(text))])
    return ["", f"{fence}{language}", visible(text).rstrip("\n"), fence]
