"""When a whole run has to be over: `budget: {total: ...}` of its job, from the start of the run."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from autotune.units import format_seconds


class OutOfTime(BaseException):
    """The total, in words, is used up. Like Ctrl-C it passes handlers of errors, and ends
    children."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A limit of seconds for everything from now on; None: as long as it takes."""

    total_s: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a total."""
        return math.inf if self.total_s is None else self.began + self.total_s - time.monotonic()

    @property
    def words(self) -> str:
        """The total in words."""
        return f"the total budget of {format_seconds(self.total_s or 0.0)}"

    @contextlib.contextmanager
    def cuts(self, keep_s: float = 0.0) -> Iterator[None]:
        """Cut the block when only `keep_s` seconds are left. Blocks are not nested.

        A timer of the process does it, so that another thread than the main one is not cut.

        Raises:
            OutOfTime: that is so.
        """
        main = threading.current_thread() is threading.main_thread()
        if self.total_s is None or not main:
            yield
            return

        def cut(number: int, frame: FrameType | None) -> None:
            raise OutOfTime(self.words)

        before = signal.signal(signal.SIGALRM, cut)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(self.left_s - keep_s, 0.001))
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
