"""Imports the stack in the process that children are forked from, and keeps CUDA out of it.

A process that has started CUDA leaves its forked children without it. Libraries ask for the GPU's
capability while they are imported (bitsandbytes, torchao), and torch starts CUDA to answer. Here
NVML answers instead, as far as it knows, and is closed again: the answers are true, so nothing
that a library concludes from them is wrong in a child. Nothing is known here by a library's name.

What starts CUDA all the same is found: after each import a child is forked that looks whether it
could use CUDA, and the module that was being imported when torch was made to start it is named.
Known gap: of what starts CUDA past torch only the import of ours that led to it can be named.
"""

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from autotune.errors import MachineError
from autotune.facts import devices

_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what `cuInit` says in a child whose parent has called it."""
_STARTERS = ("_cuda_init", "_cuda_getDeviceCount")
"""The functions of `torch._C` through which Python starts CUDA."""


def import_without_cuda(names: Sequence[str]) -> str | None:
    """Import these modules, up to the first that starts CUDA; return that one in words."""
    questions: Questions | None = None
    gc.disable()  # nothing of what is imported becomes garbage: looking takes a quarter of the time
    try:
        for name in names:
            importlib.import_module(name)
            if cuda_started():
                first = questions.starter if questions else None
                return f"`{name}`" if first in (None, name) else f"`{first}`, through `{name}`"
            if questions is None and "torch" in sys.modules:
                questions = Questions(sys.modules["torch"])
    finally:
        gc.enable()
        if questions is not None:
            questions.end()
    return None


def cuda_started() -> bool:
    """True if CUDA is lost to children that are forked from here; one is forked to find out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    pid = os.fork()
    if pid == 0:
        broken = True
        try:
            broken = torch.cuda._is_in_bad_fork() or _driver_refuses()
        finally:
            os._exit(int(broken))
    return os.waitpid(pid, 0)[1] != 0


def _driver_refuses() -> bool:
    """True if the driver knows that a process before the fork has started it."""
    if "/libcuda.so" not in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"):
        return False
    return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == _NOT_INITIALIZED)


class Questions:
    """NVML's answers to what libraries ask torch about GPUs, until `end`.

    Attributes:
        starter: the module that was being imported when CUDA was started; None: it was not.
    """

    def __init__(self, torch: Any):
        self.starter: str | None = None
        self._torch = torch
        self._open = True
        self._replaced: list[tuple[Any, str, Any]] = []
        for name in _STARTERS:
            if hasattr(torch._C, name):
                self._replace(torch._C, name, self._noting)
        if torch.backends.cuda.is_built():
            self._answer()

    def end(self) -> None:
        """Torch answers by itself again; also through what a library has kept of ours."""
        self._open = False
        for owner, name, original in self._replaced:
            setattr(owner, name, original)

    def _replace(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, make(original))

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            if self._open and self.starter is None:
                self.starter = _module_at_import(sys._getframe(1))
            return original(*arguments)

        return noting

    def _answer(self) -> None:
        try:
            gpus = [devices.gpu(index) for index in devices.visible_gpus()]
        except MachineError:  # NVML has no answer: a slice of a GPU, or one that is broken
            return
        cuda = self._torch.cuda
        self._replace(cuda, "is_available", self._while_open(lambda: bool(gpus)))
        self._replace(cuda, "device_count", self._while_open(lambda: len(gpus)))
        if gpus:
            self._replace(cuda, "current_device", self._while_open(lambda: 0))
        self._replace(cuda, "get_device_properties", lambda real: self._properties(gpus, real))

    def _while_open(
        self, answer: Callable[[], Any]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda real: lambda: answer() if self._open else real()

    def _properties(
        self, gpus: Sequence[devices.DeviceFacts], real: Callable[..., Any]
    ) -> Callable[..., Any]:
        index_of = self._torch.cuda._utils._get_device_index

        def properties(device: Any = None) -> Any:
            if not self._open:
                return real(device)
            index = 0 if device is None else index_of(device, optional=True)
            return (
                _Properties(gpus[index], lambda: real(index))
                if 0 <= index < len(gpus)
                else real(device)
            )

        return properties


class _Properties(SimpleNamespace):
    """Properties of a GPU as NVML knows them; for any other CUDA is started."""

    def __init__(self, device: devices.DeviceFacts, real: Callable[[], Any]):
        major, minor = device.capability or (0, 0)
        super().__init__(
            name=device.name, major=major, minor=minor, total_memory=device.total_bytes
        )
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)


def _module_at_import(frame: FrameType | None) -> str | None:
    """Return the innermost module but torch's own that is being imported."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and name.split(".")[0] != "torch":
            return name
        frame = frame.f_back
    return None
