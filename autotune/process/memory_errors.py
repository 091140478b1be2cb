"""Errors for lack of memory, and where it ran out: on the device or on the host."""

import linecache
import re
import traceback
from collections.abc import Sequence

from autotune.facts.host import host

_REQUEST_BYTES = re.compile(r"tried to allocate (\d+) bytes")
"""In errors of torch's allocator of the CPU."""
_ENOMEM, _UNMAPPED = "Cannot allocate memory", "failed to map segment"
"""The C library's text of ENOMEM; a library that no longer fits."""
_CPU_SAYS = ("can't allocate memory", "std::bad_alloc", "can't start new thread", _ENOMEM)
"""torch's allocator of the CPU, and what is below it; Python where a thread's stack has no room."""
_HOST_SAYS = (*_CPU_SAYS, _UNMAPPED, "in pin memory thread")
"""The last is the loader's, as torch's ExceptionWrapper tells of it."""
_LIBRARIES_SAY = "STATUS_ALLOC_FAILED"
"""cuBLAS and cuDNN, which allocate for themselves."""
_DEVICE_SAYS = ("Tried to allocate", _LIBRARIES_SAY)
"""The first is torch's caching allocator."""
_OPTIMIZERS = re.compile(r"/(?:optim/\w+|optimizer|optimization|deepspeed/runtime/.*)\.py$")
"""Files of optimizers, of torch and of what wraps them."""
_PHASES = {
    "evaluation": {"evaluate"},
    "save": {"_save_checkpoint", "save_model"},
    "backward pass": {"backward", "_engine_run_backward"},
    "generation": {"generate"},
    "forward pass": {"forward", "compute_loss"},
}
"""Part of a training -> functions; the first part with a call in the traceback counts."""
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(.+)", line \d+, in (\w+)')
_PINNING = "pin_memory"
_INNERMOST = 2
"""Frames in which a call that pins memory is looked for: its own, and torch's around it."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception is an allocation failure of a device or of the host."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    if isinstance(error, ImportError):
        return _UNMAPPED in text or _ENOMEM in text
    phrases = (*_CPU_SAYS, "out of memory", _LIBRARIES_SAY)
    return isinstance(error, RuntimeError | OSError) and any(phrase in text for phrase in phrases)


def phase_of(error: BaseException) -> str | None:
    """Return the part of a training in which an error came; None: not known."""
    frames = traceback.extract_tb(error.__traceback__)
    return _phase_of_calls([(frame.filename, frame.name) for frame in frames])


def read_memory_error(lines: Sequence[str]) -> tuple[str, str | None] | None:
    """Return (last line, part of the training) of a program that ended for lack of memory, the part
    by the traceback above that line; None: it did not end so."""
    ends = [n for n, line in enumerate(lines) if "Error: " in line and _says_memory(line)]
    if not ends:
        return None
    began = max((n for n in range(ends[-1]) if _TRACEBACK in lines[n]), default=0)
    calls = [found.groups() for line in lines[began : ends[-1]] if (found := _FRAME.search(line))]
    return lines[ends[-1]].strip(), _phase_of_calls(calls)


def _says_memory(line: str) -> bool:
    return any(text in line for text in (*_HOST_SAYS, *_DEVICE_SAYS, "out of memory"))


def _phase_of_calls(calls: Sequence[tuple[str, ...]]) -> str | None:
    """Return the part of a training by its calls: what a backward pass computes again is a part of
    it, and DeepSpeed's step is one of its call `backward`.

    Args:
        calls: (file, function) from the outermost in.
    """
    names = {name for _, name in calls}
    if any(name == "step" and _OPTIMIZERS.search(file) for file, name in calls):
        return "optimizer step"
    return next((phase for phase, called in _PHASES.items() if names & called), None)


def is_of_the_host(error: BaseException) -> bool:
    """True if memory that ran out in a job on GPUs was the host's.

    Where pinned memory cannot be had (cudaHostAlloc), CUDA says "out of memory" and no more, as it
    does where a device is full outside torch's allocator: then the call that failed decides.
    """
    text = str(error)
    if any(phrase in text for phrase in _DEVICE_SAYS):
        return False
    if isinstance(error, MemoryError) or any(phrase in text for phrase in _HOST_SAYS):
        return True
    return any(_PINNING in call for call in _last_calls(error))


def _last_calls(error: BaseException) -> list[str]:
    """Return name and source of the innermost frames; a call may be several lines long."""
    calls = []
    for frame in traceback.extract_tb(error.__traceback__)[-_INNERMOST:]:
        first = frame.lineno or 0
        numbers = range(first, (frame.end_lineno or first) + 1)
        lines = [linecache.getline(frame.filename, number) for number in numbers]
        calls.append(" ".join([frame.name, *lines]))
    return calls


def missing_on_host(error: BaseException) -> int | None:
    """Return the bytes by which a refused allocation exceeded free memory; None: not known."""
    match = _REQUEST_BYTES.search(str(error))
    return None if match is None else max(int(match[1]) - host().free_bytes, 1)
