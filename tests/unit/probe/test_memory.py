"""The arithmetic of `CudaMemory`, on a made-up torch and NVML: no GPU has run it yet."""

import os
import sys
from types import SimpleNamespace

import pytest

from autotune.facts import devices
from autotune.probe.memory import CudaMemory
from autotune.process.memory_errors import is_out_of_memory

GIB = 2**30


class FakeCuda:
    """A GPU of 80 GiB of which 70 are free, with a context of 1 GiB; `torch.cuda` of it."""

    def __init__(self):
        self.reserved = 0
        self.fraction = None

    def init(self):
        pass

    synchronize = init

    def mem_get_info(self):
        return 70 * GIB, 80 * GIB

    def memory_reserved(self):
        return self.reserved

    def max_memory_reserved(self):
        return 12 * GIB

    def max_memory_allocated(self):
        return 11 * GIB

    def memory_stats(self):
        return {"num_alloc_retries": 3, "allocated_bytes.all.peak": 18 * GIB}

    def set_per_process_memory_fraction(self, fraction):
        self.fraction = fraction


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    torch = SimpleNamespace(cuda=fake, OutOfMemoryError=OutOfMemoryError)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return fake


@pytest.fixture(params=["by process", "by difference"])
def nvml(request, monkeypatch, cuda):
    """NVML tells what this process holds, or (in a container) only what everybody does."""
    used = iter([5 * GIB])

    def process_bytes(index, pid):
        assert (index, pid) == (2, os.getpid())
        return GIB + cuda.reserved if request.param == "by process" else None

    def used_bytes(index):
        return next(used, 6 * GIB + cuda.reserved)

    monkeypatch.setattr(devices, "gpu_process_bytes", process_bytes)
    monkeypatch.setattr(devices, "gpu_used_bytes", used_bytes)


@pytest.mark.parametrize(
    ("limit", "fraction"), [(20 * GIB, 19 * GIB), (None, 70 * GIB), (90 * GIB, 70 * GIB), (1, 1)]
)
def test_the_allocator_may_take_the_limit_less_the_context(cuda, nvml, limit, fraction):
    CudaMemory(limit, 2)
    assert cuda.fraction == fraction / (80 * GIB)


def test_the_peak_is_reserved_memory_and_the_context(cuda, nvml):
    memory = CudaMemory(20 * GIB, 2)
    cuda.reserved = 9 * GIB  # less than at the peak: some was given back
    assert memory.figures() == {
        "peak_memory_bytes": 13 * GIB,
        "allocated_peak_bytes": 11 * GIB,
        "reserved_peak_bytes": 12 * GIB,
        "allocator_retries": 3,
    }


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total ...", 1.5 * GIB),
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 ...", 1),
        (
            "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 80 GiB "
            "of which 1.00 GiB is free. Of the allocated memory 16.00 GiB is allocated by PyTorch, "
            "and 1.00 GiB is reserved by PyTorch but unallocated.",
            2 * GIB,
        ),
        ("CUDA error: out of memory", None),
    ],
)
def test_what_was_missing_is_read_from_the_refusal(cuda, nvml, message, missing):
    memory = CudaMemory(20 * GIB, 2)
    cuda.reserved = 18 * GIB
    assert memory.missing_bytes(OutOfMemoryError(message)) == missing


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("whatever"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("out of resource: shared memory, Required: 999, Hardware limit: 99"), False),
        (KeyError("out of memory"), False),
    ],
)
def test_only_a_refused_allocation_is_out_of_memory(cuda, error, expected):
    assert is_out_of_memory(error) is expected
