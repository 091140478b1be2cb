"""The clock of a training process, and how much of its time others took. Runs in a child only."""

import time

import torch

from autotune.process.proc import processor_wait_seconds


def now() -> float:
    """Seconds; where CUDA is in use, once the device has done what it was given.

    Not `is_available`: a job for the CPU must not start CUDA where there is a GPU too.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class WaitedFor:
    """From when it is made: the part of the time in which the threads waited for a core."""

    def __init__(self) -> None:
        self._since, self._waited_before = time.perf_counter(), processor_wait_seconds()

    @property
    def share(self) -> float | None:
        """None where the kernel does not tell."""
        waited = processor_wait_seconds()
        if waited is None or self._waited_before is None:
            return None
        timed = time.perf_counter() - self._since
        return max(waited - self._waited_before, 0.0) / (timed * int(torch.get_num_threads()))
