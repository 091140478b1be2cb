"""The clock of a training process, and how much of its time others took. Runs in a child only."""

import time

import torch

from autotune.facts.host import cores
from autotune.process.proc import processor_wait_seconds
from autotune.process.processor_load import is_crowded


def now() -> float:
    """Return the time in seconds; where CUDA is in use, once the device has done its work.

    Not `is_available`: a job for the CPU must not start CUDA where there is a GPU too.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class ProcessorWait:
    """The share of the time since it was made in which the threads waited for a core.

    Args:
        ranks: processes that compute beside each other, this one among them.
        workers: processes of each that load its data.
    """

    def __init__(self, ranks: int = 1, workers: int = 0) -> None:
        self._crowd = ranks, workers
        self._since, self._waited_before = time.perf_counter(), processor_wait_seconds()

    @property
    def share(self) -> float | None:
        """The share; None where the kernel does not count it, and where threads wait for each
        other."""
        waited = processor_wait_seconds()
        if waited is None or self._waited_before is None:
            return None
        if is_crowded(int(torch.get_num_threads()), *self._crowd, cores()):
            return None
        elapsed_s = time.perf_counter() - self._since
        return max(waited - self._waited_before, 0.0) / (elapsed_s * int(torch.get_num_threads()))
