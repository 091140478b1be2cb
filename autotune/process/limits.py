"""Limits of a child's time, and endings of children and launches. Plain values."""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.process.host_memory import HostUse
from autotune.process.processor_load import Waits

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that no fault of a program raises."""
_LAUNCHER_SAYS = re.compile(r"died with <Signals|^ *exitcode +:|SignalException: .* got signal:")
"""The lines in which accelerate, and torch's elastic launcher, report how a rank or they themselves
ended. The first rank that failed comes last. Their own exit code is 1."""
_SIGNAL = re.compile(r"(?:Signals\.\w+: |exitcode +: -|got signal: )(\d+)")
Samples = Sequence[tuple[float, int]]
"""(seconds since the start, bytes that were held then)."""
Watcher = Callable[[dict[str, Any]], str | None]
"""Sees each progress event; a text that it returns ends the child, and is the reason."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The time that a child may take, in seconds."""

    wall_s: float = 300.0
    stall_s: float = 30.0
    """Seconds of silence and of no processor time after which a child counts as hung."""
    busy_s: float = float("inf")
    """Seconds of processor time without progress after which a child that has reported some counts
    as hung, too."""
    silent_s: float = float("inf")
    """The same, whether it computes or waits for a core."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a child: `why` is exited, wall, stall, stopped, host (its memory) or lost
    (with its server)."""

    why: str
    seconds: float
    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int | None = None
    strays: int = 0
    """Descendants that had left its group, and were killed."""
    rss_at_stop_bytes: int | None = None
    """Resident memory of the largest process of its session when it was ended: a rank, if any."""
    stop_reason: str | None = None
    events: tuple[dict[str, Any], ...] = ()
    host: HostUse = HostUse()
    """Its use of the host's memory, where that was watched."""

    @property
    def by_another(self) -> bool:
        """True if neither it nor its parent ended it: its server is gone, or a signal came from
        outside. The kernel sends such a one too, where memory runs out."""
        lost = self.why == "lost" and self.stop_reason is None
        return lost or (self.why == "exited" and self.signal in _FROM_OUTSIDE)


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """The course of a launched command. `lines` are (seconds since the start, text)."""

    exit_code: int
    timed_out: bool
    seconds: float
    peak_resident_bytes: int
    peak_gpu_bytes: int | None
    lines: tuple[tuple[float, str], ...]
    memory_kills: int = 0
    """Processes that the kernel killed for memory meanwhile."""
    processor_waits: Waits = ()
    gpu_memory: Samples = ()
    """Memory of the fullest GPU."""
    host_memory: Samples = ()
    """Memory of the fullest process, without pages of files."""
    stop_reason: str | None = None
    """The reason for which its watcher ended it; None: it did not."""
    node: str | None = None
    """The machine that it ran on, where the run had several to choose from; of those that ran parts
    of it the one that failed."""

    @property
    def foreign_signal(self) -> int | None:
        """The signal from outside that ended it, or one of its processes; None: there was none. The
        kernel does not count where memory runs out."""
        if self.exit_code == 0 or self.timed_out or self.memory_kills or self.stop_reason:
            return None
        number = -self.exit_code if self.exit_code < 0 else self._launcher_signal()
        return number if number in _FROM_OUTSIDE else None

    def _launcher_signal(self) -> int | None:
        for _, line in reversed(self.lines):
            if _LAUNCHER_SAYS.search(line):
                found = _SIGNAL.search(line)
                return int(found[1]) if found else None
        return None


def signal_name(number: int) -> str:
    """Return a signal's name: `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
