"""The memory that a child takes, and the limit it runs under. Bytes.

CPU: memory is the process's peak resident size (`VmHWM`, which the kernel lets us reset), as a
fresh process would have it: a forked child starts without the pages of library code that its
parent has mapped (115 MB here), and a fresh process has them; so they are added. Known error: what
the child touches of the same pages counts twice (it reads high by tens of MB), and what a fresh
process takes for tokenizing does not count. The limit is `RLIMIT_DATA`, set relative to what the
child holds when it starts, so that too large a candidate dies of a real allocation failure.

CUDA: the allocator's own peaks, and what NVML says of the whole process. The peak that counts is
reserved memory plus what the process holds outside the allocator (context, libraries).
"""

import contextlib
import os
import re
import resource
from pathlib import Path
from typing import Any

from autotune.facts import devices
from autotune.probe.protocol import ProbeRequest
from autotune.process.proc import process_status, unmapped_bytes

_CPU_WANTED = re.compile(r"tried to allocate (\d+) bytes")
_CUDA_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB)")
_CUDA_HELD = re.compile(r"([\d.]+) ?(bytes|KiB|MiB|GiB) is (?:allocated|reserved) by PyTorch")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _size(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])


class CpuMemory:
    """Peak resident size, and a limit on growth."""

    def __init__(self, limit_bytes: int | None):
        self._data_limit: int | None = None
        self._peak = 0
        self._forget_peak()
        self._unmapped = unmapped_bytes()
        if limit_bytes is not None:
            growth = max(limit_bytes - process_status("VmRSS") - self._unmapped, 0)
            self._data_limit = process_status("VmData") + growth
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (self._data_limit, hard))

    def _forget_peak(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def phase_peak(self, *, counts: bool = True) -> int:
        """Return the peak of the process since the last call.

        Args:
            counts: whether it is a part of the peak of the whole.
        """
        peak = process_status("VmHWM") + self._unmapped
        self._peak = max(self._peak, peak) if counts else self._peak
        self._forget_peak()
        return peak

    def held_bytes(self) -> int:
        """Return bytes that the process holds now."""
        return process_status("VmRSS") + self._unmapped

    def figures(self) -> dict[str, int | None]:
        """Return the memory fields of a measurement."""
        return {
            "peak_memory_bytes": max(process_status("VmHWM") + self._unmapped, self._peak),
            "allocated_peak_bytes": None,
            "reserved_peak_bytes": None,
            "allocator_retries": None,
        }

    def missing_bytes(self, error: BaseException) -> int | None:
        """Return the bytes by which a refused allocation exceeded the limit; None: not known."""
        match = _CPU_WANTED.search(str(error))
        if match is None or self._data_limit is None:
            return None
        return max(process_status("VmData") + int(match[1]) - self._data_limit, 1)

    def lift(self) -> None:
        """Let the reply be written even at the limit."""
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


class CudaMemory:
    """The CUDA caching allocator and NVML."""

    def __init__(self, limit_bytes: int | None, index: int):
        import torch

        self._torch: Any = torch
        self._index = index
        self._used_before = devices.gpu_used_bytes(index)
        torch.cuda.init()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        self._limit = min(limit_bytes or total, total)
        outside = self._outside_bytes()
        allowed_bytes = max(min(self._limit - outside, free), 1)
        torch.cuda.set_per_process_memory_fraction(min(allowed_bytes / total, 1.0))
        self._allowed_bytes = allowed_bytes
        self._peak_allocated = self._peak_reserved = 0

    def _outside_bytes(self) -> int:
        """Return bytes that the process holds on the GPU besides the allocator's reserved
        memory."""
        reserved = int(self._torch.cuda.memory_reserved())
        own_bytes = devices.gpu_process_bytes(self._index, os.getpid())
        if own_bytes is None:
            used = devices.gpu_used_bytes(self._index)
            if used is None or self._used_before is None:
                return 0
            own_bytes = used - self._used_before
        return max(own_bytes - reserved, 0)

    def _note_peaks(self) -> None:
        allocated = int(self._torch.cuda.max_memory_allocated())
        self._peak_allocated = max(self._peak_allocated, allocated)
        reserved = int(self._torch.cuda.max_memory_reserved())
        self._peak_reserved = max(self._peak_reserved, reserved)

    def phase_peak(self, *, counts: bool = True) -> int:
        """Return the peak of the allocator since the last call.

        Args:
            counts: whether it is a part of the peak of the whole.
        """
        if counts:
            self._note_peaks()
        allocated = int(self._torch.cuda.max_memory_allocated())
        self._torch.cuda.reset_peak_memory_stats()
        return allocated

    def held_bytes(self) -> int:
        """Return bytes that the process holds now, without the allocator's cache."""
        return int(self._torch.cuda.memory_allocated()) + self._outside_bytes()

    def figures(self) -> dict[str, int | None]:
        """Return the memory fields of a measurement."""
        stats = self._torch.cuda.memory_stats()
        self._note_peaks()
        reserved = self._peak_reserved
        return {
            "peak_memory_bytes": reserved + self._outside_bytes(),
            "allocated_peak_bytes": self._peak_allocated,
            "reserved_peak_bytes": reserved,
            "allocator_retries": int(stats.get("num_alloc_retries", 0)),
        }

    def missing_bytes(self, error: BaseException) -> int | None:
        """Return the bytes by which a refused allocation exceeded the limit; None: not known.

        Before it refuses, the allocator gives back what it can: what it still has reserved but
        unallocated lies in pieces that are too small, and counts as held.
        """
        match = _CUDA_WANTED.search(str(error))
        if match is None:
            return None
        request_bytes = _size(match)
        held_sizes = [_size(match) for match in _CUDA_HELD.finditer(str(error))]
        held_bytes = sum(held_sizes) if held_sizes else int(self._torch.cuda.memory_reserved())
        return int(max(held_bytes + request_bytes - self._allowed_bytes, 1))

    def lift(self) -> None:
        """Do nothing: the reply needs no GPU memory."""


def with_vllm(
    figures: dict[str, Any], request: ProbeRequest, resident_bytes: int | None = None
) -> dict[str, Any]:
    """Return memory fields of a measurement, with what vLLM will have of the device at the peak of
    both.

    Args:
        resident_bytes: what the training holds when a generation begins, where that is known.
    """
    if not request.vllm_bytes:
        return figures
    peak = figures["peak_memory_bytes"]
    vllm_bytes = request.vllm.added_peak(peak, resident_bytes or 0)
    return {**figures, "peak_memory_bytes": peak + vllm_bytes, "vllm_bytes": vllm_bytes}
