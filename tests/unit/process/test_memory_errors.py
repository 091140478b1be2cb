"""What counts as memory that ran out."""

import traceback
from typing import Any

import pytest
import torch
from torch._utils import ExceptionWrapper

from autotune.facts.host import host
from autotune.probe.outcome import outcome_of
from autotune.process.memory_errors import (
    is_of_the_host,
    is_out_of_memory,
    missing_on_host,
    phase_of,
    read_memory_error,
)

CUDA_SAYS = (
    "CUDA error: out of memory\n"
    "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)
"""Of torch's `C10_CUDA_CHECK`, whatever CUDA was asked for."""
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.00 GiB is free."
)
CPU_SAYS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    f"tried to allocate {2**50} bytes. Error code 12 (Cannot allocate memory)"
)


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


def refuse(*_: object, **__: object) -> None:
    """As torch tells of what CUDA could not give."""
    raise torch.AcceleratorError(CUDA_SAYS)


def pin_memory(tensor: object) -> None:
    """As DeepSpeed's accelerator has it."""
    refuse(tensor)


def raised_by(call) -> BaseException:
    with pytest.raises(BaseException) as info:
        call()
    return info.value


def wrapped(error: BaseException, where: str) -> BaseException:
    """An exception of a thread or process of torch's loader, as the trainer sees it."""
    try:
        raise error
    except BaseException:
        return raised_by(ExceptionWrapper(where=where).reraise)


def in_several_lines() -> None:
    refuse(
        1,
        pin_memory=True,
    )


HOSTS = (
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
    RuntimeError(CPU_SAYS),
    RuntimeError("std::bad_alloc"),
    raised_by(lambda: pin_memory(1)),
    raised_by(in_several_lines),
    wrapped(RuntimeError(CUDA_SAYS), "in pin memory thread for device 0"),
)
DEVICES = (
    torch.OutOfMemoryError(FULL),
    raised_by(lambda: refuse(1)),
    RuntimeError(CUDA_SAYS),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)


@pytest.mark.parametrize("error", HOSTS, ids=range(len(HOSTS)))
def test_memory_of_the_host_has_its_own_name_on_gpus(error):
    assert is_out_of_memory(error) and is_of_the_host(error)
    assert outcome_of(error, "train", "cuda") == "host_oom"
    assert outcome_of(error, "train", "cpu") == "oom"


@pytest.mark.parametrize("error", DEVICES, ids=range(len(DEVICES)))
def test_memory_of_the_device_keeps_its_name(error):
    assert is_out_of_memory(error) and not is_of_the_host(error)
    assert outcome_of(error, "train", "cuda") == "oom"


def test_an_error_that_torch_really_raises_is_of_the_host():
    error = raised_by(lambda: torch.empty(2**55, dtype=torch.uint8))
    assert is_of_the_host(error)
    assert missing_on_host(error) > 2**54


def test_what_the_host_lacks_is_what_was_wanted_less_what_is_free():
    missing = missing_on_host(RuntimeError(CPU_SAYS))
    assert abs(missing - (2**50 - host().free_bytes)) < 2**32
    assert missing_on_host(RuntimeError(CUDA_SAYS)) is None


def without_room(*calls: str) -> BaseException:
    """What torch raises of an allocation that fails, within calls of these names."""
    names: dict[str, Any] = {"torch": torch}
    inner = "torch.empty(2**60, dtype=torch.uint8)"
    for name in reversed(calls):
        code = compile(f"def {name}():\n    {inner}\n", "torch/optim/adam.py", "exec")
        exec(code, names)
        inner = f"{name}()"
    return raised_by(names[calls[0]])


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        (["training_step", "forward"], "forward pass"),
        (["training_step", "backward", "forward"], "backward pass"),
        (["backward", "step"], "optimizer step"),
        (["evaluate", "forward"], "evaluation"),
        (["_save_checkpoint"], "save"),
        (["collate"], None),
    ],
)
def test_where_memory_ran_out_is_told_by_its_calls(calls: list[str], phase: str | None) -> None:
    error = without_room(*calls)
    assert phase_of(error) == phase
    text = "".join(traceback.format_exception(error)).splitlines()
    prefixed = [f"[rank1]: {line}" for line in text]
    other = ["Traceback (most recent call last):", "ValueError: out", "bye"]
    for lines in ([*other, *text, *other], [*other, *prefixed, *other]):
        line, found = read_memory_error(lines) or ("", None)
        assert "DefaultCPUAllocator: can't allocate memory" in line and found == phase
    assert read_memory_error([*other, "ran out of memory, perhaps"]) is None
