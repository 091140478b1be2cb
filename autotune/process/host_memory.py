"""The host's memory that all processes of a probe take together, seen from outside. Bytes.

A process counts as a fresh one would: all its private pages, also those that it still shares with
the process it was forked from (the ranks of a launch are not forked from one another); of files and
of shared memory its proportional share, so that each page counts once (`Pss_File` and `Pss_Shmem`
of /proc/PID/smaps_rollup; proc(5)). Where that file cannot be read the resident size counts,
libraries for each process. Other programs that a process has started do not count: DeepSpeed's
compiler, once for all probes, was seen to take more than all ranks.

It is looked at four times a second, so a peak between two looks is missed. The pages are only
counted (which takes the kernel time) where the resident sizes, which are at hand, have grown.
Never seen with CUDA, whose driver decides how pinned memory is mapped (`docs/unverified.md`).
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.facts.host import KEPT_FREE, host
from autotune.process.proc import resident_bytes, session_members

EVERY_S = 0.25
GROWN = 1.005
"""By how much resident sizes have to grow before the pages are counted again."""
LOADED = ("step", "micro_step")
"""The first of these events ends loading: model, trainer and what divides them are there."""
LOOK_BYTES = 3 * 2**30
"""What a look takes at most beside the size of the data; a GiB more is held before it is seen."""
_COUNTED_FIELDS = ("Anonymous", "Pss_File", "Pss_Shmem")


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """The highest use that was seen: while the model was loaded, and after that; None: never.

    Attributes:
        limit_bytes: what all processes may take together; None: any amount.
    """

    loading_bytes: int | None = None
    training_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the whole probe, in bytes; None: it was not watched."""
        peaks = [peak for peak in (self.loading_bytes, self.training_bytes) if peak is not None]
        return max(peaks, default=None)

    @property
    def missing_bytes(self) -> int | None:
        """Bytes by which the limit was passed, at least; None: it was not."""
        peak, limit = self.peak_bytes, self.limit_bytes
        return peak - limit if peak is not None and limit is not None and peak > limit else None

    @property
    def when(self) -> str:
        """The part of the probe in which the peak was: `training` or `loading`."""
        return "training" if (self.training_bytes or 0) > (self.loading_bytes or 0) else "loading"


def meter_of_a_look(data_bytes: int = 0) -> "HostMeter":
    """Return what ends a process that looks at a model and its data where it takes more of its own
    than the size of the data and `LOOK_BYTES`, or than is free."""
    free_bytes = int(host().free_bytes * (1 - KEPT_FREE))
    return HostMeter(min(LOOK_BYTES + data_bytes, free_bytes), ranks=False, fields=("Anonymous",))


class HostMeter:
    """Watches the processes of one probe.

    Args:
        limit_bytes: what they may take together; None: any amount.
        ranks: whether the first process only waits for the others, and does not count.
        fields: the pages that count.
    """

    def __init__(
        self, limit_bytes: int | None, *, ranks: bool, fields: Sequence[str] = _COUNTED_FIELDS
    ) -> None:
        self._limit, self._ranks, self._fields = limit_bytes, ranks, fields
        self._next = 0.0
        self._resident = 0.0
        self._loaded = False
        self._peaks: dict[bool, int] = {}

    @property
    def use(self) -> HostUse:
        """The use that was seen so far."""
        return HostUse(
            loading_bytes=self._peaks.get(False),
            training_bytes=self._peaks.get(True),
            limit_bytes=self._limit,
        )

    def note(self, event: dict[str, Any]) -> None:
        """Take note of an event of the probe's progress."""
        if not self._loaded and event.get("event") in LOADED:
            self._loaded, self._resident = True, 0.0  # each part has a peak of its own

    def over_limit(self, leader: int) -> bool:
        """Look at the session of `leader`, unless the last look was a moment ago; return True if
        its processes have taken more than they may."""
        if time.monotonic() >= self._next:
            self._look(leader)
            self._next = time.monotonic() + EVERY_S
        return self.use.missing_bytes is not None

    def _look(self, leader: int) -> None:
        members = [pid for pid in session_members(leader) if not self._ranks or pid != leader]
        resident = sum(resident_bytes(pid) or 0 for pid in members)
        if resident <= GROWN * self._resident:
            return
        self._resident = resident
        total = sum(own_bytes(pid, self._fields) for pid in members)
        self._peaks[self._loaded] = max(self._peaks.get(self._loaded, 0), total)


def own_bytes(pid: int, fields: Sequence[str] = _COUNTED_FIELDS) -> int:
    """Return the bytes that a process takes of the host, as a fresh one would; 0 once it is
    gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return resident_bytes(pid) or 0
    sizes = dict.fromkeys(fields, 0)
    for line in text.splitlines():
        name, _, amount = line.partition(":")
        if name in sizes:
            with contextlib.suppress(ValueError, IndexError):
                sizes[name] = int(amount.split()[0]) * 1024
    # Before Linux 5.4 it does not tell files and shared memory apart.
    return sum(sizes.values()) if "Pss_File:" in text else resident_bytes(pid) or 0
