"""How far estimates are: one line that moves in a terminal, else a line now and then."""

from rich.control import Control
from rich.segment import ControlType

from autotune.cli.views.console import PlainConsole
from autotune.report.progress_lines import NOW_AND_THEN_S, EstimateLines

_MOVE_S = 0.1


class EstimatesShown(EstimateLines):
    """Shows how many candidates are estimated, and of how many."""

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
