"""HTML by templates: what they are given is escaped, always, and what is not given is an error."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


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
