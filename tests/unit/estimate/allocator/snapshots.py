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
        for blocks in segments(caching, pool)
    ]


def segments(caching, pool):
    """The blocks of every stretch of a pool's reserved memory, by address."""
    known = [block for block in caching._live.values() if block and block.pool is pool]
    heads = {head(block).address: head(block) for block in [*known, *(b for *_, b in pool._free)]}
    return [
        list(blocks)
        for _, first in sorted(heads.items())
        for mapped, blocks in groupby(first.onward(), key=lambda block: block.mapped)
        if mapped
    ]


def head(block):
    """The first block of a block's segment."""
    while block.previous is not None:
        block = block.previous
    return block
