"""The load of the cores: how long the threads of a command wait for one.

The kernel counts the wait of each thread (`schedstat`; proc(5)), and forgets it when the thread
ends: so what was seen of it last is kept. Where the kernel counts nothing, nothing is known.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.process.descendants import tree

EVERY_S = 0.5
Waits = Sequence[tuple[float, float]]
"""(seconds since the start, seconds that all threads have waited by then)."""


class ProcessorWaits:
    """Looks at a process and all that it has started, twice a second."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._next_s = 0.0
        self.waits: list[tuple[float, float]] = []

    def look(self, pid: int, now_s: float) -> None:
        """Look, unless the last look was a moment ago.

        Args:
            now_s: seconds since the start.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._seen.update(_thread_waits(pid))
        if self._seen:
            self.waits.append((now_s, sum(self._seen.values())))


def is_crowded(threads: int, ranks: int, workers: int, cores: int) -> bool:
    """True if more threads compute than there are cores: then they wait for each other, which says
    nothing of others.

    Args:
        threads: of each rank.
        workers: processes of each rank that load its data.
    """
    return ranks * (threads + workers) > cores


def wait_share(waits: Waits, begin_s: float, end_s: float, threads: int) -> float | None:
    """Return the share of a time in which so many threads waited for a core; None: not known."""
    before = [look for look in waits if look[0] <= begin_s][-1:] or list(waits[:1])
    after = [look for look in waits if look[0] >= end_s][:1] or list(waits[-1:])
    if not before or after[0][0] <= before[0][0]:
        return None
    seconds = after[0][0] - before[0][0]
    return max(after[0][1] - before[0][1], 0.0) / (seconds * threads)


def _thread_waits(pid: int) -> Iterator[tuple[int, float]]:
    for process in tree(pid):
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    text = (task / "schedstat").read_text(encoding="ascii")
                    yield int(task.name), int(text.split()[1]) / 1e9
