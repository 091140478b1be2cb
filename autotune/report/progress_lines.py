"""Lines while estimates are made, one now and then."""

import time
from collections.abc import Callable

from autotune.plan.choices import Choice
from autotune.plan.progress import MEMORY_ERROR, SPEED_ERROR, FirstEstimate, Progress
from autotune.report.words import candidate_text
from autotune.space.bind import SearchSpace
from autotune.units import format_bytes, format_seconds, format_speed

NOW_AND_THEN_S = 30.0
"""Between two lines."""
_SEEN_S = 1.0
"""From so many seconds on the time of the rest is estimated."""


class EstimateLines(Progress):
    """Says how many candidates are estimated, and of how many.

    Args:
        say: prints a line.
        every_s: seconds between two counts.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = NOW_AND_THEN_S) -> None:
        self._say, self._every_s = say, every_s
        self._said = self._began = time.monotonic()
        self._about = ""

    def looking_at(self, what: str) -> None:
        self._about = f"{what}: "

    def estimated(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done == 0:
            self._began = now
        if now - self._said >= self._every_s and done < of:
            self._said = now
            since_s = now - self._began
            left_s = since_s * (of - done) / done if done and since_s >= _SEEN_S else None
            left = "" if left_s is None else f", about {format_seconds(left_s)} left"
            self.show(f"{self._about}estimated {done} of {of} candidates{left} ...")

    def show(self, text: str) -> None:
        """Show how far it is."""
        self._say(text)

    def by_formula(self, first: FirstEstimate) -> None:
        self._say(f"{self._about}so far {first_text(first)}")

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        self._say(f"{self._about}so far: {_best_text(best, space, devices)}")

    def nothing_fits(self, limit_bytes: int) -> None:
        room = format_bytes(limit_bytes)
        self._say(f"{self._about}so far: nothing fits in {room}; looking for what would")


def first_text(first: FirstEstimate) -> str:
    """Return the best choice by formula, with how far off the formula is."""
    errors = f"by formula, memory +-{MEMORY_ERROR:.0%}, speed +-{SPEED_ERROR:.0%}"
    rows = "" if first.row_length is None else f", rows of {first.row_length:,} tokens"
    if first.best.estimate.fits:
        return f"({errors}{rows}): {_best_text(first.best, first.space, 1)}"
    least, limit = first.best.estimate.peak_memory_bytes, format_bytes(first.limit_bytes)
    return f"({errors}{rows}): nothing fits in {limit}; the smallest needs {format_bytes(least)}"


def _best_text(best: Choice, space: SearchSpace, devices: int) -> str:
    """Return a choice, with its speed and its memory."""
    speed, peak = best.estimate.tokens_per_s, format_bytes(best.estimate.peak_memory_bytes)
    figures = peak if speed is None else f"{format_speed(speed)}, {peak}"
    return f"{candidate_text(best.candidate, space, devices)}: {figures}"
