"""A record of allocations as an allocator would serve it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.allocator.caching import AllocatorSettings, CachingAllocator, OutOfMemory
from autotune.estimate.records.events import ALLOCATE, FREE, Event, MemoryUse, live_bytes

CUDA_GRANULE, CPU_GRANULE = 512, 1
FAR_BEYOND = 0.1
"""What lacks more than this share of the limit is not looked at more closely. Chosen, not
measured."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What an allocator makes of a record. Bytes.

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
        """What orders replays by how much they need."""
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


def replayed(
    events: Sequence[Event],
    limit_bytes: int | None,
    *,
    expandable_segments: bool,
    use: MemoryUse | None = None,
) -> Replay:
    """Replay a record through the CUDA caching allocator, held to a limit.

    Where it runs out, the reserved bytes are those it would need without a limit.

    Args:
        use: what the record's live storages add up to (`on_cuda`), where that is known already.
    """
    use = use or on_cuda(events)
    free = _run(events, AllocatorSettings(expandable_segments=expandable_segments))
    reserved, retries, missing = free.peak_reserved_bytes, 0, None
    if limit_bytes is not None and free.roomy_limit_bytes > limit_bytes:
        if use.peak_bytes > limit_bytes:
            missing = use.peak_bytes - limit_bytes
        else:  # it may still fit, once the cache is given back
            settings = AllocatorSettings(
                limit_bytes=limit_bytes, expandable_segments=expandable_segments
            )
            try:
                allocator = _run(events, settings)
                reserved, retries = allocator.peak_reserved_bytes, allocator.retries
            except OutOfMemory as error:
                missing = error.missing_bytes
    return Replay(use=use, reserved_bytes=reserved, retries=retries, missing_bytes=missing)


def far_beyond(use: MemoryUse, limit_bytes: int | None, reserved_share: float) -> Replay | None:
    """Return the replay of what does not fit by far, whatever an allocator would make of it; else
    None.

    Args:
        reserved_share: reserved bytes over live ones, of a smaller micro-batch.
    """
    if limit_bytes is None or use.peak_bytes <= (1 + FAR_BEYOND) * limit_bytes:
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


def _run(events: Sequence[Event], settings: AllocatorSettings) -> CachingAllocator:
    allocator = CachingAllocator(settings)
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
    """Return the CPU has no caching allocator: what tensors take is what the process asks for."""
    use = live_bytes(events, CPU_GRANULE)
    missing = None
    if limit_bytes is not None and use.peak_bytes > limit_bytes:
        missing = use.peak_bytes - limit_bytes
    return Replay(use=use, reserved_bytes=use.peak_bytes, retries=0, missing_bytes=missing)
