"""DeepSpeed's view of a GPU whose tensors are fake: their device is the CPU, their streams differ.

Runs in a child only.
"""

import contextlib
from typing import Any

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator


class FakeAccelerator(CPU_Accelerator):
    """The CPU's accelerator, with streams and events as on a GPU.

    DeepSpeed then takes the ways through its program that it takes on a GPU. The tracer sees the
    streams (`torch.cpu.current_stream`): an allocator keeps the memory of each of them apart.
    """

    def is_synchronized_device(self) -> bool:
        """No: work on other streams has to be waited for."""
        return False

    def use_host_timers(self) -> bool:
        """Yes: nothing is timed in a trace."""
        return True

    @property
    def Stream(self) -> Any:
        return torch.cpu.Stream

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext() if stream is None else torch.cpu.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return torch.cpu.current_stream()

    def default_stream(self, device_index: int | None = None) -> Any:
        return torch.cpu._default_cpu_stream

    @property
    def Event(self) -> Any:
        return torch.cpu.Event
