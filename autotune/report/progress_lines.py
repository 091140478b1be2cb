"""What is said while estimates are made, in a line now and then."""

import time
from collections.abc import Callable

from autotune.plan.choices import Choice
from autotune.plan.progress import Progress
from autotune.report.words import candidate_text
from autotune.space.bind import SearchSpace
from autotune.units import format_bytes, format_seconds, format_speed

NOW_AND_THEN_S = 30.0
"""Between two lines."""
_SEEN_S = 1.0
"""From so many seconds on it can be said how long the rest takes."""


class EstimateLines(Progress):
    """Says how many candidates are estimated, and of how many.

    Args:
        say: hears each line.
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

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        speed, peak = best.estimate.tokens_per_s, format_bytes(best.estimate.peak_memory_bytes)
        figures = peak if speed is None else f"{format_speed(speed)}, {peak}"
        self._say(f"so far: {candidate_text(best.candidate, space, devices)}: {figures}")

    def nothing_fits(self, limit_bytes: int) -> None:
        self._say(f"so far: nothing fits in {format_bytes(limit_bytes)}; looking for what would")
