"""What an allocator has reserved, segment by segment, as `torch.cuda.memory_snapshot` tells it."""

from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, kw_only=True)
class BlockState:
    address: int
    size_bytes: int
    allocated: bool


@dataclass(frozen=True, kw_only=True)
class SegmentState:
    """A stretch of reserved memory. Addresses begin at 0 in each of the two pools."""

    small: bool
    address: int
    size_bytes: int
    blocks: tuple[BlockState, ...]


def snapshot(caching):
    """All reserved memory, by stream, of each the small pool's first, each by address."""
    pools = sorted(caching._pools.items(), key=lambda item: (item[0][0], not item[0][1]))
    return [
        SegmentState(
            small=small,
            address=blocks[0].address,
            size_bytes=sum(block.size for block in blocks),
            blocks=tuple(
                BlockState(address=b.address, size_bytes=b.size, allocated=not b.free)
                for b in blocks
            ),
        )
        for (_, small), pool in pools
        for blocks in segments(pool)
    ]


def segments(pool):
    """The blocks of every stretch of a pool's reserved memory, by address."""
    return [
        list(blocks)
        for head in pool._heads()
        for mapped, blocks in groupby(head.onward(), key=lambda block: block.mapped)
        if mapped
    ]
