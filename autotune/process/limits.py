"""How long a child may take, and how it ended. Plain values."""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.process.host_memory import HostUse
from autotune.process.processor_waits import Waits

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Which no fault of a program raises."""
_LAUNCHER_SAYS = re.compile(r"died with <Signals|^ *exitcode +:|SignalException: .* got signal:")
"""How accelerate, torch's elastic launcher of a rank and of itself tell how that ended. The first
rank that failed comes last. Their own exit code is 1."""
_SIGNAL = re.compile(r"(?:Signals\.\w+: |exitcode +: -|got signal: )(\d+)")
Samples = Sequence[tuple[float, int]]
"""(seconds since the start, bytes that were held then)."""
Watcher = Callable[[dict[str, Any]], str | None]
"""Sees each progress event; a text that it returns ends the child, and is the reason."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a child may take, in seconds."""

    wall_s: float = 300.0
    stall_s: float = 30.0
    """Silence without using the processor after which a child counts as hung."""
    busy_s: float = float("inf")
    """Processor time without a word, once it has said one, after which it counts as hung, too."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a child ended: `why` is exited, wall, stall, stopped, host (its memory) or lost."""

    why: str
    exit_code: int | None
    signal: int | None
    max_rss_bytes: int | None
    strays: int
    seconds: float
    rss_at_stop_bytes: int | None = None
    """Of the process of its session that held most when it was ended: a rank, where there are."""
    stop_reason: str | None = None
    events: tuple[dict[str, Any], ...] = ()
    host: HostUse = HostUse()
    """What was seen of the host's memory, where it was watched."""

    @property
    def by_another(self) -> bool:
        """True if neither it nor its parent ended it: its server is gone, or a signal came from
        outside. The kernel sends such a one too, where memory runs out."""
        lost = self.why == "lost" and self.stop_reason is None
        return lost or (self.why == "exited" and self.signal in _FROM_OUTSIDE)


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """How a launched command went. `lines` are (seconds since the start, text)."""

    exit_code: int
    timed_out: bool
    seconds: float
    peak_resident_bytes: int
    peak_gpu_bytes: int | None
    lines: tuple[tuple[float, str], ...]
    memory_kills: int = 0
    """How many processes the kernel killed for memory meanwhile."""
    processor_waits: Waits = ()
    gpu_memory: Samples = ()
    """Of the fullest GPU."""
    host_memory: Samples = ()
    """Of the fullest process: what is no file's."""
    stop_reason: str | None = None
    """Why it was ended by its watcher; None: it was not."""

    @property
    def foreign_signal(self) -> int | None:
        """The signal by which somebody else ended it, or one of its processes; None: nobody did.
        The kernel, where memory runs out, is nobody else."""
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


def lost_ending(seconds: float, stop_reason: str | None = None) -> Ending:
    """Return the ending of a child whose server itself is gone.

    Args:
        stop_reason: why the server was given up; None: it was not.
    """
    return Ending(
        why="lost",
        exit_code=None,
        signal=None,
        max_rss_bytes=None,
        strays=0,
        seconds=seconds,
        stop_reason=stop_reason,
    )


def signal_name(number: int) -> str:
    """`SIGKILL` of 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
