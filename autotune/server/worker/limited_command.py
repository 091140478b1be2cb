"""A command under the operator's limits: of memory, of time, and of how long it may take to end."""

import time

from autotune.process.command import Command

END_S = 60.0
"""After so long a command that was asked to end is ended."""


class LimitedCommand:
    """Watches a command, and ends it where it takes more than it may.

    Args:
        memory_bytes: what all its processes may take together; None: as they like.
        limit_s: how long it may take; None: as long as it likes.

    Attributes:
        problem: what it took too much of, as an error; empty: nothing.
    """

    def __init__(
        self, command: Command, *, memory_bytes: int | None, limit_s: float | None
    ) -> None:
        self._command, self._memory_bytes, self._limit_s = command, memory_bytes, limit_s
        self._began = time.monotonic()
        self._stop_began: float | None = None
        self.problem = ""

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._command.exit_code

    def look(self) -> None:
        """End what takes too much memory, what takes too long, and what does not end when asked."""
        if self.exit_code is not None:
            return
        if self._memory_bytes is not None and self._command.resident_bytes > self._memory_bytes:
            self.problem = (
                f"error: the plan took more than the {self._memory_bytes / 2**30:.3g} GiB that the "
                "operator gives it (`plan_memory`)"
            )
            self.end()
        elif self._limit_s is not None and time.monotonic() - self._began > self._limit_s:
            self.give_up(f"it took longer than the {self._limit_s / 60:.3g} minutes")
        if self._stop_began is not None and time.monotonic() - self._stop_began > END_S:
            self.end()

    def give_up(self, why: str) -> None:
        """Ask it to end, for it takes more than the operator gives it."""
        self.problem = self.problem or f"error: {why} that the operator gives it"
        self.stop()

    def stop(self) -> None:
        """Ask it to end."""
        if self._stop_began is None:
            self._stop_began = time.monotonic()
            self._command.interrupt()

    def end(self) -> None:
        """End it now."""
        if self.exit_code is None:
            self._command.end()
