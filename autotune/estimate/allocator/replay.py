"""A record, replayed through PyTorch's CUDA caching allocator without a device. Pure.

A model of c10/cuda/CUDACachingAllocator.cpp with the default settings, or with expandable segments.
The rules, read in a version of 2025 and in one newer than torch 2.13 (they are the same there): a
request is rounded up to 512 bytes. The smallest free block that fits is taken, at the lowest
address among equals, and split if enough remains. Without one, memory is asked of the driver. If
that refuses, whatever is wholly free is given back to it, and it is asked once more: that is a
retry.

Where it may differ from a real run:
- The driver decides addresses. Here they only rise, so among free blocks of equal size another one
  may be taken.
- `limit_bytes` is that of `set_per_process_memory_fraction`, which holds a probe: torch compares it
  with the reserved bytes plus the whole request, rounded to a segment's size. An expandable segment
  may need less (its end is free already): a training that only the driver limits then goes on where
  this retries. It may take more, by less than a page of 20 MiB, and so go beyond the limit.
- Each stream has pools of its own. That a use on another stream delays a free (`record_stream`) is
  left out, and so are CUDA graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.allocator.pools import (
    LARGE_SEGMENT,
    ROUNDING,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    Block,
    Driver,
    ExpandablePool,
    FixedPool,
    Pool,
    segment_bytes,
)
from autotune.estimate.records.events import ALLOCATE, FREE, STREAM, Event, MemoryUse, live_bytes


class OutOfMemory(Exception):
    """A request that did not fit, after all that is wholly free was given back. Bytes.

    Args:
        requested_bytes: the request, as it was made.
        reserved_bytes: what was then still reserved.
        allocated_bytes: what was in use.
        missing_bytes: how far beyond the limit the request would have gone, above 0.
    """

    def __init__(
        self, *, requested_bytes: int, reserved_bytes: int, allocated_bytes: int, missing_bytes: int
    ) -> None:
        super().__init__(
            f"a request of {requested_bytes} bytes lacks {missing_bytes} bytes"
            f" ({allocated_bytes} allocated, {reserved_bytes} reserved)"
        )
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes
        self.missing_bytes = missing_bytes


class CachingAllocator:
    """The allocator of one device. Callers name their allocations by integers, as a record does.

    Args:
        limit_bytes: the most that it may reserve; None: no limit.
        expandable_segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

    Attributes (bytes):
        allocated_bytes: in use, as `torch.cuda.memory_allocated` counts: whole blocks.
        peak_allocated_bytes: its highest.
        retries: `num_alloc_retries`, with those that ended in OutOfMemory.
        roomy_limit_bytes: the least limit under which nothing so far would have been a retry.
    """

    def __init__(self, limit_bytes: int | None = None, *, expandable_segments: bool) -> None:
        self._driver = Driver(limit_bytes)
        self._expandable = expandable_segments
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._live: dict[int, Block | None] = {}
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.retries = 0
        self.roomy_limit_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver now, as `torch.cuda.memory_reserved` counts."""
        return self._driver.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The highest `reserved_bytes` so far."""
        return self._driver.peak_reserved_bytes

    def allocate(self, key: int, nbytes: int) -> None:
        """Allocate `nbytes` (0: nothing) under the name `key`.

        Raises:
            OutOfMemory: it does not fit. `key` then names nothing, and one may go on.
            ValueError: `key` is in use, or `nbytes` is negative.
        """
        if key in self._live:
            raise ValueError(f"allocation {key} has not been freed")
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"`nbytes` must not be negative, but got {nbytes}")
            self._live[key] = None
            return
        size = -(-nbytes // ROUNDING) * ROUNDING
        place = key // STREAM, size <= SMALL_REQUEST
        pool = self._pools.get(place) or self._new_pool(place)
        block = pool.take(size) or self._grow(pool, size, nbytes)
        if block.size > size:
            pool.split(block, size)
        self._live[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes

    def free(self, key: int) -> None:
        """Free what was allocated as `key`. KeyError: nothing was, or it was freed already."""
        block = self._live.pop(key)
        if block is not None:
            self.allocated_bytes -= block.size
            block.pool.cache(block)

    def empty_cache(self) -> None:
        """Give the driver back what is not in use (`torch.cuda.empty_cache`)."""
        for pool in self._pools.values():
            pool.release()

    def _new_pool(self, place: tuple[int, bool]) -> Pool:
        """Return a pool for the requests of a stream, (stream, whether they are small): with the
        first of them it is made."""
        _, small = place
        if self._expandable:
            page = SMALL_SEGMENT if small else LARGE_SEGMENT
            self._pools[place] = ExpandablePool(self._driver, page=page)
        else:
            least_rest = ROUNDING if small else SMALL_REQUEST + ROUNDING
            self._pools[place] = FixedPool(self._driver, least_rest=least_rest)
        return self._pools[place]

    def _grow(self, pool: Pool, size: int, nbytes: int) -> Block:
        """Return a block from the driver, if need be once the cache has been given back to it."""
        if pool.missing(size) > 0:
            self.empty_cache()
            self.retries += 1
        missing = pool.missing(size)
        if missing > 0:
            raise OutOfMemory(
                requested_bytes=nbytes,
                reserved_bytes=self.reserved_bytes,
                allocated_bytes=self.allocated_bytes,
                missing_bytes=missing,
            )
        roomy_bytes = self.reserved_bytes + segment_bytes(size)
        self.roomy_limit_bytes = max(self.roomy_limit_bytes, roomy_bytes)
        return pool.grow(size)


CUDA_GRANULE, CPU_GRANULE = 512, 1
OVERSIZE_SHARE = 0.1
"""What lacks more than this share of the limit is not looked at more closely. Chosen, not
measured."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of a record in an allocator. Bytes.

    Attributes:
        missing_bytes: how far beyond the limit it would have had to go; None where it fits.
        retries: how often it gave its cache back to the driver before it went on.
        scaled: whether the reserved bytes follow from those of a smaller micro-batch.
    """

    use: MemoryUse
    reserved_bytes: int
    retries: int
    missing_bytes: int | None
    scaled: bool = False

    @property
    def need(self) -> tuple[bool, int, int]:
        """The key that orders replays by their need of memory."""
        return self.missing_bytes is not None, self.retries, self.reserved_bytes

    def as_reply_fields(self) -> dict[str, Any]:
        """Return the fields of a `PointReply` that a replay decides."""
        return {
            "peak_allocated_bytes": self.use.peak_bytes,
            "peak_reserved_bytes": self.reserved_bytes,
            "parts": self.use.parts,
            "operator": self.use.operator,
            "phase": self.use.phase,
            "oom": self.missing_bytes is not None,
            "missing_bytes": self.missing_bytes,
            "retries": self.retries,
            "phases": self.use.phases,
            "micro_peaks": self.use.micro_peaks,
        }


class ReplayedRecord:
    """A record in the CUDA caching allocator: it is gone through once without a limit, and once
    more for each limit that squeezes it.

    Args:
        events: of the record.
        use: what its live storages add up to, where that is known already.
    """

    def __init__(self, events: Sequence[Event], use: MemoryUse | None = None) -> None:
        self._events = events
        self._free: dict[bool, tuple[int, int]] = {}
        """Without a limit, by whether segments grow: reserved bytes, and the least roomy limit."""
        self.use = use or on_cuda(events)

    def held_to(self, limit_bytes: int | None, *, expandable_segments: bool) -> Replay:
        """Return the replay under a limit. Where it runs out, the reserved bytes are those it
        would need without one."""
        if expandable_segments not in self._free:
            free = CachingAllocator(expandable_segments=expandable_segments)
            _run(self._events, free)
            figures = free.peak_reserved_bytes, free.roomy_limit_bytes
            self._free[expandable_segments] = figures
        reserved, roomy_limit_bytes = self._free[expandable_segments]
        retries, missing = 0, None
        if limit_bytes is not None and roomy_limit_bytes > limit_bytes:
            if self.use.peak_bytes > limit_bytes:
                missing = self.use.peak_bytes - limit_bytes
            else:  # it may still fit, once the cache is given back
                squeezed = CachingAllocator(limit_bytes, expandable_segments=expandable_segments)
                try:
                    _run(self._events, squeezed)
                    reserved, retries = squeezed.peak_reserved_bytes, squeezed.retries
                except OutOfMemory as error:
                    missing = error.missing_bytes
        return Replay(use=self.use, reserved_bytes=reserved, retries=retries, missing_bytes=missing)


def replayed(
    events: Sequence[Event],
    limit_bytes: int | None,
    *,
    expandable_segments: bool,
    use: MemoryUse | None = None,
) -> Replay:
    """Replay a record through the CUDA caching allocator, held to one limit.

    Args:
        use: what the record's live storages add up to (`on_cuda`), where that is known already.
    """
    record = ReplayedRecord(events, use)
    return record.held_to(limit_bytes, expandable_segments=expandable_segments)


def oversized(use: MemoryUse, limit_bytes: int | None, reserved_share: float) -> Replay | None:
    """Return the replay of what does not fit by far, whatever an allocator would make of it; else
    None.

    Args:
        reserved_share: reserved bytes over live ones, of a smaller micro-batch.
    """
    if limit_bytes is None or use.peak_bytes <= (1 + OVERSIZE_SHARE) * limit_bytes:
        return None
    return Replay(
        use=use,
        reserved_bytes=round(reserved_share * use.peak_bytes),
        retries=0,
        missing_bytes=use.peak_bytes - limit_bytes,
        scaled=True,
    )


def on_cuda(events: Sequence[Event]) -> MemoryUse:
    """Return what live storages add up to, in the allocator's units."""
    return live_bytes(events, CUDA_GRANULE)


def _run(events: Sequence[Event], allocator: CachingAllocator) -> CachingAllocator:
    allocate, free = allocator.allocate, allocator.free
    for event in events:
        kind, key = event[0], event[1]
        if kind == ALLOCATE:
            allocate(key, event[2])
        elif kind == FREE:
            if key < 0:
                allocator.empty_cache()
            else:
                free(key)
    return allocator


def on_cpu(events: Sequence[Event], limit_bytes: int | None) -> Replay:
    """Return the replay on a CPU, which has no caching allocator: a process takes what tensors
    take."""
    use = live_bytes(events, CPU_GRANULE)
    missing = None
    if limit_bytes is not None and use.peak_bytes > limit_bytes:
        missing = use.peak_bytes - limit_bytes
    return Replay(use=use, reserved_bytes=use.peak_bytes, retries=0, missing_bytes=missing)
