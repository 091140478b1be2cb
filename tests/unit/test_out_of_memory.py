"""What counts as memory that ran out."""

import pytest

from autotune.probe.memory import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError("[Errno 12] Cannot allocate memory"),
        ImportError("lib.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_a_library_that_no_longer_fits_is_memory_that_ran_out(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [ImportError("No module named `x`"), ValueError("out of memory")])
def test_other_failures_are_not(error):
    assert not is_out_of_memory(error)
