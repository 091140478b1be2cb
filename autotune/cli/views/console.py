"""The console of tables and of what a run says, and the line that moves in it.

It shows what a terminal would obey.
"""

from typing import Any

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from autotune.errors import visible
from autotune.report.progress_lines import NOW_AND_THEN_S, EstimateLines

_MOVE_S = 0.1


class PlainConsole(Console):
    """A console that shows control characters of the texts it is given; its own it has."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it is printed, also in a cell."""
        return super().render_str(visible(text), **options)

    def print_line(self, text: str) -> None:
        """Print a text as it is: nothing in it is markup, and the terminal folds it."""
        self.print(text, highlight=False, soft_wrap=True, markup=False)


class EstimatesShown(EstimateLines):
    """Shows how far estimates are: one line that moves in a terminal, else a line now and then."""

    def __init__(self, console: PlainConsole) -> None:
        self._console = console
        self._line = False
        super().__init__(self._print, _MOVE_S if console.is_terminal else NOW_AND_THEN_S)

    def estimated(self, done: int, of: int) -> None:
        if done >= of:
            self.clear()
        super().estimated(done, of)

    def show(self, text: str) -> None:
        if not self._console.is_terminal:
            self._print(text)
            return
        self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
        self._console.print(text, end="\r", highlight=False, soft_wrap=True, markup=False)
        self._line = True

    def clear(self) -> None:
        """Take the moving line away."""
        if self._line:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
            self._line = False

    def _print(self, text: str) -> None:
        self.clear()
        self._console.print_line(text)
