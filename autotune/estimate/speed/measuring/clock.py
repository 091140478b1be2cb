"""The clocks of `measuring/worker.py`: the time of a call on the CPU, or on a CUDA device.

On CUDA the device is timed by its own events. A plug of matmuls runs in front, so that the host
has dispatched what is timed before the device gets to it: else small kernels would be as slow as
the host. Runs in a child only.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from autotune.facts import devices
from autotune.facts.device_kinds import rules_of

PLUG_S = 0.01
_COPIED_BYTES = 1 << 26


class Clock:
    """The clock of the CPU, and what else differs between devices."""

    kind = "cpu"
    kept_results = 2
    """Results that stay alive, as activations do. On CUDA it would change nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def name(self) -> str:
        """The device's name."""
        return devices.cpu().name

    def can(self, dtype: str) -> bool:
        """True if the device computes in this dtype, and not by detours."""
        return True

    def prefers_cudnn(self, dtype: str) -> bool:
        """True if PyTorch takes cuDNN's attention first."""
        return False

    def seconds(self, call: Callable[[], Any], enough_s: float) -> float:
        """Return the time of a call, over about `enough_s`: the lower quartile, in case others
        compute."""
        for _ in range(self.kept_results + 1):  # until results lie where others lay before them
            call()
        times: list[float] = []
        began = time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - began < enough_s and len(times) < 100):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 4]

    def synchronize(self) -> None:
        """Wait until all that was dispatched has been computed."""

    def host_bytes_per_s(self) -> float | None:
        """Return the rate of copies between host and device, the mean of both ways; None: there are
        none."""
        return None


class CudaClock(Clock):
    """The clock of a CUDA device."""

    kind = "cuda"
    kept_results = 1

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._square = torch.rand(4096, 4096, device=device)
        self._plugs = 1
        self._plug()
        self._plugs = max(1, round(PLUG_S / self._elapsed_s(self._plug)))

    @property
    def name(self) -> str:
        """The device's name."""
        return str(torch.cuda.get_device_name(self.device))

    def can(self, dtype: str) -> bool:
        """True if the device computes in this dtype itself; older ones compute bfloat16 by
        detours."""
        return dtype != "bfloat16" or torch.cuda.get_device_capability(self.device) >= (8, 0)

    def prefers_cudnn(self, dtype: str) -> bool:
        """True on Hopper and data-centre Blackwell, in 16 bits."""
        capability = torch.cuda.get_device_capability(self.device)
        return dtype != "float32" and rules_of(capability, torch.__version__).cudnn_sdpa_first

    def seconds(self, call: Callable[[], Any], enough_s: float) -> float:
        """Return the mean time of a call on the device, over about `enough_s`."""
        call()
        # Few enough that the host has dispatched all of them before the plug is through.
        count = max(2, min(50, round(enough_s / self._elapsed_s(call))))
        self._plug()
        return self._elapsed_s(lambda: [call() for _ in range(count)]) / count

    def synchronize(self) -> None:
        """Wait until all that was dispatched has been computed."""
        torch.cuda.synchronize(self.device)

    def host_bytes_per_s(self) -> float | None:
        """Return the rate of copies from and to pinned memory; None where none may be pinned."""
        on_device = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=self.device)
        try:
            on_host = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            return None
        to = self.seconds(lambda: on_device.copy_(on_host, non_blocking=True), PLUG_S)
        back = self.seconds(lambda: on_host.copy_(on_device, non_blocking=True), PLUG_S)
        return 2 * _COPIED_BYTES / (to + back)

    def _plug(self) -> None:
        for _ in range(self._plugs):
            torch.mm(self._square, self._square)

    def _elapsed_s(self, call: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
