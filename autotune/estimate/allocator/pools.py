"""The parts of the caching allocator: blocks, pools that cache them, fixed and expandable segments.

Names and rules are those of c10/cuda/CUDACachingAllocator.cpp; the comments name its functions.
All sizes are bytes. Pure. `replay.py` is the way in.

An expandable segment is one address range that memory is mapped into, page by page. The range is
taken as endless (the real one is 9/8 of the device's memory; beyond it, torch starts a second one).
It ends in an unmapped block; further unmapped blocks are pages that were given back.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator

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
    """The memory of the CUDA driver, up to `limit_bytes` (None: without end)."""

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
        """Yield this block and all behind it in its segment."""
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

    __slots__ = ("_end",)

    def __init__(self, driver: Driver, least_rest: int) -> None:
        super().__init__(driver, least_rest)
        self._end = 0

    def grow(self, size: int) -> Block:
        """Return a new segment (alloc_block)."""
        segment = segment_bytes(size)
        self._driver.reserve(segment)
        block = Block(self, self._end, segment, mapped=True)
        self._end += segment
        return block

    def release(self) -> None:
        """Give back the segments that are one free block; split ones stay."""
        for block in [b for *_, b in self._free if b.previous is None and b.next is None]:
            self._remove(block)
            self._driver.give_back(block.size)


ADDRESS_SPACE = 1 << 60


class ExpandablePool(Pool):
    """A pool with one segment that grows by pages of `page` bytes."""

    __slots__ = ("_page", "_unmapped")

    def __init__(self, driver: Driver, page: int) -> None:
        super().__init__(driver, least_rest=ROUNDING)
        self._page = page
        self._unmapped = [Block(self, 0, rounded_up(ADDRESS_SPACE, page), mapped=False)]

    def take(self, size: int) -> Block | None:
        """Return a block as of any pool, but a block that can grow counts with all that it can grow
        to."""
        index = bisect_left(self._free, (size,))
        if index == len(self._free):
            return None
        room, last = _room_to_grow(self._free[index][2]), len(self._free) - 1
        while index < last and (following := _room_to_grow(self._free[index + 1][2])) < room:
            index, room = index + 1, following
        return self._pop(index)

    def grow(self, size: int) -> Block:
        """Map pages at the lowest address where `size` fits (try_allocate_expandable_block)."""
        block = self._lowest_fit(size)
        if not block.mapped:
            self._map(block, min(size, block.size))
        while block.size < size:
            following = block.next
            assert following is not None  # _lowest_fit saw room there
            self._map(following, min(size - block.size, following.size))
        self._remove(block)
        return block

    def release(self) -> None:
        """Give back all pages without a used byte (unmap_block)."""
        for *_, block in list(self._free):
            begin = rounded_up(block.address, self._page)
            end = (block.address + block.size) // self._page * self._page
            if begin < end:
                self._unmap(block, begin, end)

    def _lowest_fit(self, size: int) -> Block:
        """Return the first of the blocks, free or unmapped, that hold `size`
        (find_expandable_block)."""
        for block in self._unmapped:
            if block.previous is not None and block.previous.free:
                block = block.previous
            room = 0
            for part in block.onward():
                if room >= size or (part.mapped and not part.free):
                    break
                room += part.size
            if room >= size:
                return block
        raise ValueError(f"a request of {size} bytes is more than the address space")

    def _map(self, block: Block, size: int) -> None:
        """Put memory behind the first `size` bytes of an unmapped block and cache them."""
        size = rounded_up(size, self._page)
        self._driver.reserve(size)
        self._unmapped.remove(block)
        if size < block.size:
            self._add_unmapped(block.cut(size))
        block.mapped = True
        self.cache(block)

    def _unmap(self, block: Block, begin: int, end: int) -> None:
        """Take the memory from between two addresses of a free block."""
        self._remove(block)
        if begin > block.address:
            front, block = block, block.cut(begin - block.address)
            self._insert(front)
        if block.address + block.size > end:
            self._insert(block.cut(end - begin))
        block.mapped = False
        self._driver.give_back(end - begin)
        previous, following = block.previous, block.next
        if previous is not None and not previous.mapped:
            self._unmapped.remove(previous)
            previous.absorb(block)
            block = previous
        if following is not None and not following.mapped:
            self._unmapped.remove(following)
            block.absorb(following)
        self._add_unmapped(block)

    def _add_unmapped(self, block: Block) -> None:
        insort(self._unmapped, block, key=lambda unmapped: unmapped.address)


def _room_to_grow(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
