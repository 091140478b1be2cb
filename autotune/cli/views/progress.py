"""How far estimates are: one line that moves in a terminal, else a line now and then."""

import time

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from autotune.plan.progress import Progress

NOW_AND_THEN_S = 30.0
"""Between two lines where there is no terminal."""
_MOVE_S = 0.1


class EstimatesShown(Progress):
    """Shows how many candidates are estimated, and of how many."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()
        self._line = False
        self._about = ""

    def looking_at(self, what: str) -> None:
        self._about = f"{what}: "

    def estimated(self, done: int, of: int) -> None:
        now, moving = time.monotonic(), self._console.is_terminal
        if moving and done >= of:
            self.clear()
        elif now - self._said >= (_MOVE_S if moving else NOW_AND_THEN_S) and done < of:
            self._said = now
            text = f"{self._about}estimated {done} of {of} candidates ..."
            if moving:
                self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
            end = "\r" if moving else "\n"
            self._console.print(text, end=end, highlight=False, soft_wrap=True, markup=False)
            self._line = moving

    def clear(self) -> None:
        """Take the moving line away."""
        if self._line:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
            self._line = False
