"""Expandable segments: one address range that memory is mapped into, page by page. Bytes; pure.

The range is taken as endless (the real one is 9/8 of the device's memory; beyond it, torch starts a
second one). It ends in an unmapped block; further unmapped blocks are pages that were given back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from autotune.estimate.allocator.pools import ROUNDING, Block, Driver, Pool, rounded_up

ADDRESS_SPACE = 1 << 60


class ExpandablePool(Pool):
    """A pool with one segment that grows by pages of `page` bytes."""

    __slots__ = ("_head", "_page", "_unmapped")

    def __init__(self, driver: Driver, page: int) -> None:
        super().__init__(driver, least_rest=ROUNDING)
        self._page = page
        self._head = Block(self, 0, rounded_up(ADDRESS_SPACE, page), mapped=False)
        self._unmapped = [self._head]

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

    def _heads(self) -> Iterable[Block]:
        return [self._head]

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
