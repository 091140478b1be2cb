"""A report as one HTML file: plots, styles and scripts are in it, and it asks no host for anything.

What the run's folder says is escaped by the template. Were something to slip through, the page's
own policy lets no script run but the two that come with this package, and nothing reach a host.
"""

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autotune import __version__
from autotune.errors import visible
from autotune.report.content import Content
from autotune.report.figures import figures
from autotune.report.sections import Table, sections, size_text, speed_text
from autotune.units import format_seconds


class HtmlTemplates:
    """The templates of a folder, each read once.

    Args:
        filters: what they may apply to values.
        names: what all of them know.
        finalize: is given every value before it is escaped.
    """

    def __init__(
        self,
        folder: Path,
        filters: Mapping[str, Any],
        names: Mapping[str, Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
            finalize=finalize,
            auto_reload=False,
        )
        self._environment.filters.update(filters)
        self._environment.globals.update(names or {})

    def html(self, name: str, **values: Any) -> str:
        """Return a template with its values filled in."""
        return self._environment.get_template(name).render(**values)


_HERE = Path(__file__).parent
_SCRIPTS = ("vendor/plotly-basic.min.js", "report.js")


def html_report(content: Content) -> str:
    """Return the whole report."""
    return _templates().html(
        "report.html",
        content=content,
        sections=list(sections(content)),
        figures=figures(content),
        style=Markup(_static("report.css")),
        scripts=[Markup(script) for script in scripts()],
        policy=policy(),
        version=__version__,
    )


def answer_html(lines: Sequence[str], table: Table | None, below: Sequence[str]) -> str:
    """Return what a notebook shows: sentences, the first of them bold, and a table with what is
    said below it."""
    return _templates().html("answer.html", lines=lines, table=table, below=below)


@functools.cache
def scripts() -> tuple[str, ...]:
    """Return the scripts of a page, in order: plotly, and what draws with it."""
    return tuple(_static(name) for name in _SCRIPTS)


@functools.cache
def policy() -> str:
    """Return the Content-Security-Policy of a page. Plotly styles what it draws, so inline styles
    are allowed; without a host to reach they can tell nobody anything."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts())
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _static(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


@functools.cache
def _templates() -> HtmlTemplates:
    filters = {"speed": speed_text, "size": size_text, "seconds": format_seconds}
    return HtmlTemplates(_HERE / "templates", filters, finalize=_as_seen)


def _as_seen(value: Any) -> Any:
    """Return the text for the page: control characters of a text are shown."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value
