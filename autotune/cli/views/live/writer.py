"""What is written to a terminal in a thread of its own: a terminal that takes nothing, as behind a
connection that hangs, holds up nobody who writes to it."""

import contextlib
import os
import queue
import select
import threading
from typing import IO

MOST_S = 5.0
"""So long the end of what was written may take; then it is left to itself."""


class Writer:
    """Stands for a terminal; who writes to it goes on at once.

    Args:
        terminal: has a file descriptor.
    """

    def __init__(self, terminal: IO[str]) -> None:
        self._terminal, self._texts = terminal, queue.Queue[str | None]()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:
        """The terminal's."""
        return getattr(self._terminal, "encoding", None) or "utf-8"

    @property
    def is_behind(self) -> bool:
        """True if the terminal has not taken all yet."""
        return self._texts.unfinished_tasks > 0

    def isatty(self) -> bool:
        """True if it is a terminal."""
        return self._terminal.isatty()

    def write(self, text: str) -> int:
        """Write a text, soon."""
        self._texts.put(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """Wait until all was taken, if it is."""
        self._texts.put(None)
        self._thread.join(MOST_S)

    def _write_all(self) -> None:
        number = self._terminal.fileno()
        while (text := self._texts.get()) is not None:
            data = text.encode(self.encoding, "backslashreplace")
            with contextlib.suppress(OSError):  # it is gone
                while data:
                    data = data[_taken(number, data) :]
            self._texts.task_done()
        self._texts.task_done()


def _taken(number: int, data: bytes) -> int:
    """Return how many bytes a terminal takes now; one that somebody else made non-blocking is
    waited for.

    Raises:
        OSError: it is gone.
    """
    try:
        return os.write(number, data)
    except BlockingIOError:
        select.select([], [number], [])
        return 0
