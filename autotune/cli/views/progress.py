"""How far estimates are: one line that moves in a terminal, else a line now and then."""

import time

from rich.control import Control
from rich.segment import ControlType

from autotune.cli.views.console import PlainConsole
from autotune.plan.choices import Choice
from autotune.plan.progress import Progress
from autotune.report.words import candidate_text
from autotune.space.bind import SearchSpace
from autotune.units import format_bytes, format_seconds, format_speed

NOW_AND_THEN_S = 30.0
"""Between two lines where there is no terminal."""
_MOVE_S = 0.1
_SEEN_S = 1.0
"""From so many seconds on it can be said how long the rest takes."""


class EstimatesShown(Progress):
    """Shows how many candidates are estimated, and of how many."""

    def __init__(self, console: PlainConsole) -> None:
        self._console = console
        self._said = time.monotonic()
        self._line = False
        self._about = ""
        self._began = self._said

    def looking_at(self, what: str) -> None:
        self._about = f"{what}: "

    def estimated(self, done: int, of: int) -> None:
        now, moving = time.monotonic(), self._console.is_terminal
        if done == 0:
            self._began = now
        if moving and done >= of:
            self.clear()
        elif now - self._said >= (_MOVE_S if moving else NOW_AND_THEN_S) and done < of:
            self._said = now
            since_s = now - self._began
            left_s = since_s * (of - done) / done if done and since_s >= _SEEN_S else None
            left = "" if left_s is None else f", about {format_seconds(left_s)} left"
            text = f"{self._about}estimated {done} of {of} candidates{left} ..."
            if moving:
                self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
            end = "\r" if moving else "\n"
            self._console.print(text, end=end, highlight=False, soft_wrap=True, markup=False)
            self._line = moving

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        speed, peak = best.estimate.tokens_per_s, format_bytes(best.estimate.peak_memory_bytes)
        figures = peak if speed is None else f"{format_speed(speed)}, {peak}"
        self.clear()
        text = f"so far: {candidate_text(best.candidate, space, devices)}: {figures}"
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def clear(self) -> None:
        """Take the moving line away."""
        if self._line:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
            self._line = False
