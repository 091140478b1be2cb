"""The same steps for real on the CPU, with the allocations torch's own profiler saw.

What estimates are held against where there is no GPU. Runs in a child only.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from autotune.estimate.protocol import TraceRequest
from autotune.estimate.trace import asked_probe, feed, sft_rows, trace_config
from autotune.training import sft

_KERNELS = {
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}

_Event = tuple[int, int, int, int]
"""Time, bytes or their negative, address, and in which kernel: 0 where in none."""


@dataclass(frozen=True, kw_only=True)
class RealPeak:
    """Peak of the bytes that the CPU allocator had given out."""

    peak_bytes: int
    without_scratch_bytes: int
    """Without what a matrix product or attention takes and gives back inside one kernel.

    The libraries that compute them (oneDNN, MKL) choose by processor how much that is.
    """


def real_peak(request: TraceRequest) -> RealPeak:
    """Run the steps for real and watch the allocator."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-truth-") as scratch,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        config = trace_config(request, Path(scratch))
        _, training, model = sft.parse_config(config, Path(scratch))
        training.max_steps = len(request.steps)
        trainer = sft.build_trainer(asked_probe(request), training, model, sft_rows(request))
        feed(trainer, request)
        trainer.train()
        del trainer
    events = sorted(_allocations(profiler))
    inside = _scratch(events)
    outside = (event for index, event in enumerate(events) if index not in inside)
    return RealPeak(peak_bytes=_peak(events), without_scratch_bytes=_peak(outside))


def real_peak_bytes(request: TraceRequest) -> int:
    """Peak of the bytes that the CPU allocator had given out while the steps really ran."""
    return real_peak(request).peak_bytes


def _peak(events: Iterable[_Event]) -> int:
    live: dict[int, int] = {}
    current = peak = 0
    for _, size, address, _ in events:
        if size > 0:
            live[address] = size
            current += size
            peak = max(peak, current)
        else:
            current -= live.pop(address, 0)
    return peak


def _scratch(events: list[_Event]) -> set[int]:
    """Where the events are of what lived inside one kernel only."""
    born: dict[int, tuple[int, int]] = {}
    found: set[int] = set()
    for index, (_, size, address, kernel) in enumerate(events):
        if size > 0:
            born[address] = (index, kernel)
        elif address in born:
            before, where = born.pop(address)
            if kernel and kernel == where:
                found |= {before, index}
    return found


def _allocations(profiler: Any) -> list[_Event]:
    found = []
    kernels = 0
    waiting = [(node, 0) for node in profiler.profiler.kineto_results.experimental_event_tree()]
    while waiting:
        node, kernel = waiting.pop()
        if node.tag == _EventType.Allocation:
            fields = node.extra_fields
            found.append((node.start_time_ns, fields.alloc_size, fields.ptr, kernel))
        elif not kernel and node.name in _KERNELS:
            kernels += 1
            kernel = kernels
        waiting.extend((child, kernel) for child in node.children)
    return found


def threads(count: int) -> None:
    """More threads take more scratch; the truth is taken with few."""
    torch.set_num_threads(count)
