"""The parts of the caching allocator: blocks, pools that cache them, segments of fixed size.

Names and rules are those of c10/cuda/CUDACachingAllocator.cpp; the comments name its functions.
All sizes are bytes. Pure. `caching.py` is the way in.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

MIB = 1 << 20
ROUNDING = 512
"""Every request is rounded up to a multiple of this (kMinBlockSize)."""
SMALL_REQUEST = MIB
"""Requests up to this, once rounded, are served by the small pool (kSmallSize)."""
SMALL_SEGMENT = 2 * MIB
"""Segment, or page, of the small pool (kSmallBuffer)."""
LARGE_SEGMENT = 20 * MIB
"""Segment of the large pool for requests below 10 MiB, and its page (large_segment_size)."""
OWN_SEGMENT_REQUEST = 10 * MIB
"""The least request that gets a segment of its own size (kMinLargeAlloc)."""
LARGE_ROUNDING = 2 * MIB
"""... rounded up to a multiple of this (kRoundLarge)."""


def rounded_up(size: int, unit: int) -> int:
    """Return the least multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def segment_bytes(size: int) -> int:
    """Return the size of the segment for a rounded request (get_allocation_size)."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT_REQUEST:
        return LARGE_SEGMENT
    return rounded_up(size, LARGE_ROUNDING)


class Driver:
    """What the CUDA driver hands out, up to `limit_bytes` (None: without end)."""

    __slots__ = ("limit_bytes", "peak_reserved_bytes", "reserved_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0

    def excess(self, size: int) -> int:
        """Return how far `size` more bytes would go beyond the limit; at most 0: they would not."""
        return 0 if self.limit_bytes is None else self.reserved_bytes + size - self.limit_bytes

    def reserve(self, size: int) -> None:
        """Hand out `size` bytes."""
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def give_back(self, size: int) -> None:
        """Take `size` bytes back."""
        self.reserved_bytes -= size


class Block:
    """A range of a segment. In use, or `free` (in its pool's cache), or not `mapped` to memory."""

    __slots__ = ("address", "free", "mapped", "next", "pool", "previous", "size")

    def __init__(self, pool: "Pool", address: int, size: int, mapped: bool) -> None:
        self.pool, self.address, self.size, self.mapped = pool, address, size, mapped
        self.free = False
        self.previous: Block | None = None
        self.next: Block | None = None

    def cut(self, size: int) -> "Block":
        """Keep the first `size` bytes; the rest becomes the next block, in use, and is returned."""
        remainder = Block(self.pool, self.address + size, self.size - size, self.mapped)
        remainder.previous, remainder.next = self, self.next
        if self.next is not None:
            self.next.previous = remainder
        self.next, self.size = remainder, size
        return remainder

    def absorb(self, following: "Block") -> None:
        """Take over the bytes of the next block, which is none any more."""
        self.size += following.size
        self.next = following.next
        if following.next is not None:
            following.next.previous = self

    def onward(self) -> Iterator["Block"]:
        """This block and all behind it in its segment."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.next


class Pool(ABC):
    """Free blocks, best fit first, and the segments that they are part of.

    Args:
        driver: where memory comes from.
        least_rest: the fewest bytes that are worth splitting off a block (should_split).
    """

    __slots__ = ("_driver", "_free", "least_rest")

    def __init__(self, driver: Driver, least_rest: int) -> None:
        self._driver, self.least_rest = driver, least_rest
        self._free: list[tuple[int, int, Block]] = []
        """(size, address, block); no two have the same address."""

    def take(self, size: int) -> Block | None:
        """Return a cached block of at least `size`, now in use (get_free_block); None: there is
        none."""
        index = bisect_left(self._free, (size,))
        return self._pop(index) if index < len(self._free) else None

    def cache(self, block: Block) -> None:
        """Cache a block, merged with its free neighbours (free_block, try_merge_blocks)."""
        previous, following = block.previous, block.next
        if previous is not None and previous.free:
            self._remove(previous)
            previous.absorb(block)
            block = previous
        if following is not None and following.free:
            self._remove(following)
            block.absorb(following)
        self._insert(block)

    def split(self, block: Block, size: int) -> None:
        """Cache what `block` has beyond `size`, if it is worth it (alloc_found_block)."""
        if block.size - size >= self.least_rest:
            self._insert(block.cut(size))

    def missing(self, size: int) -> int:
        """Return how far a rounded request on new memory goes beyond the limit; at most 0: it does
        not."""
        return self._driver.excess(segment_bytes(size))

    @abstractmethod
    def grow(self, size: int) -> Block:
        """Return a block of at least `size`, in use, on new memory, whatever the limit says."""

    @abstractmethod
    def release(self) -> None:
        """Give the driver back what can be given back (release_blocks)."""

    @abstractmethod
    def _heads(self) -> Iterable[Block]:
        """Return the first block of every segment, by address."""

    def _insert(self, block: Block) -> None:
        block.free = True
        insort(self._free, (block.size, block.address, block))

    def _remove(self, block: Block) -> None:
        self._pop(bisect_left(self._free, (block.size, block.address)))

    def _pop(self, index: int) -> Block:
        block = self._free.pop(index)[2]
        block.free = False
        return block


class FixedPool(Pool):
    """A pool of cudaMalloc's segments, which never change their size."""

    __slots__ = ("_end", "_segments")

    def __init__(self, driver: Driver, least_rest: int) -> None:
        super().__init__(driver, least_rest)
        self._segments: dict[int, Block] = {}
        self._end = 0

    def grow(self, size: int) -> Block:
        """Return a new segment (alloc_block)."""
        segment = segment_bytes(size)
        self._driver.reserve(segment)
        block = Block(self, self._end, segment, mapped=True)
        self._segments[block.address] = block
        self._end += segment
        return block

    def release(self) -> None:
        """Give back the segments that are one free block; split ones stay."""
        for block in [b for *_, b in self._free if b.previous is None and b.next is None]:
            self._remove(block)
            del self._segments[block.address]
            self._driver.give_back(block.size)

    def _heads(self) -> Iterable[Block]:
        return self._segments.values()
