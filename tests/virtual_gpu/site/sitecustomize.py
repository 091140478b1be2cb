"""Read by every Python on a virtual GPU: values begin with the process's first use of CUDA, and
Triton's kernels are not launched.

Nothing heavy is imported here: only when somebody imports torch.cuda, its start is wrapped.
"""

import importlib.abc
import importlib.util
import os
import sys


def begin_with_values(cuda):
    """Let values begin as CUDA starts."""
    start, begun = cuda._lazy_init, []

    def start_with_values():
        start()
        if not begun and os.environ.get("VIRTUAL_GPU_VALUES", "1") == "1":
            begun.append(True)
            from virtual_values import begin

            begin()

    cuda._lazy_init = start_with_values


def without_launches(jit):
    """Launch no kernel of Triton's, whose driver the stand-ins lack: what it may write to holds a
    harmless value then."""

    def run(self, *args, **kwargs):
        import torch

        for given in (*args, *kwargs.values()):
            if isinstance(given, torch.Tensor) and given.is_floating_point():
                given.detach().fill_(0.5)

    jit.JITFunction.run = run


WRAPPED = {"torch.cuda": begin_with_values, "triton.runtime.jit": without_launches}


class _Wrapped(importlib.abc.Loader):
    """Loads a module as ever, then changes it."""

    def __init__(self, loader, change):
        self._loader, self._change = loader, change

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds each of these modules, once."""

    def __init__(self):
        self._left = dict(WRAPPED)

    def find_spec(self, name, path=None, target=None):
        change = self._left.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        spec.loader = _Wrapped(spec.loader, change)
        return spec


if os.environ.get("VIRTUAL_GPU_NAME"):
    sys.meta_path.insert(0, _Finder())
