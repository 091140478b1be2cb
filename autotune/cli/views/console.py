"""The console of tables and of what a run says, which shows what a terminal would obey."""

from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.errors import visible


class PlainConsole(Console):
    """A console that shows control characters of the texts it is given; its own it has."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it is printed, also in a cell."""
        return super().render_str(visible(text), **options)

    def print_line(self, text: str) -> None:
        """Print a text as it is: nothing in it is markup, and the terminal folds it."""
        self.print(text, highlight=False, soft_wrap=True, markup=False)
