"""What torch's profiler saw of the CPU allocator. Runs in a child only."""

from collections.abc import Iterator, Sequence
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


def phase_peaks(profiler: Any, marks: Sequence[tuple[int, str]]) -> dict[str, int]:
    """Return the same of each phase.

    Args:
        marks: (`time.time_ns`, the phase that begins then), in order.
    """
    live: dict[int, int] = {}
    current, at, phase = 0, 0, ""
    peaks: dict[str, int] = {}
    for when, size, address in sorted(_allocations(profiler)):
        while at < len(marks) and marks[at][0] <= when:
            phase, at = marks[at][1], at + 1
        if size > 0:
            live[address] = size
            current += size
            peaks[phase] = max(peaks.get(phase, 0), current)
        else:
            current -= live.pop(address, 0)
    return peaks


def _allocations(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """(time, bytes or their negative, address) of each event of the allocator, in no order."""
    nodes = list(profiler.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        if node.tag == _EventType.Allocation:
            fields = node.extra_fields
            yield node.start_time_ns, fields.alloc_size, fields.ptr
        nodes.extend(node.children)
