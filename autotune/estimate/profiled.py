"""What torch's profiler saw of the CPU allocator. Runs in a child only."""

from collections.abc import Iterator
from typing import Any

from torch._C._profiler import _EventType


def peak_bytes(profiler: Any) -> int:
    """Peak of the bytes given out while the profiler ran (`profile_memory=True`)."""
    live: dict[int, int] = {}
    current = peak = 0
    for _, size, address in sorted(_allocations(profiler)):
        if size > 0:
            live[address] = size
            current += size
            peak = max(peak, current)
        else:
            current -= live.pop(address, 0)
    return peak


def _allocations(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """(time, bytes or their negative, address) of each event of the allocator, in no order."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        node = waiting.pop()
        if node.tag == _EventType.Allocation:
            fields = node.extra_fields
            yield node.start_time_ns, fields.alloc_size, fields.ptr
        waiting.extend(node.children)
