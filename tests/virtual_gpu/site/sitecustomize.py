"""Read by every Python on a virtual GPU: values begin with the process's first use of CUDA.

Nothing heavy is imported here: only when somebody imports torch.cuda, its start is wrapped.
"""

import importlib.abc
import importlib.util
import os
import sys


class _Wrapped(importlib.abc.Loader):
    """Loads torch.cuda as ever, then wraps what starts CUDA."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        start, begun = module._lazy_init, []

        def start_with_values():
            start()
            if not begun and os.environ.get("VIRTUAL_GPU_VALUES", "1") == "1":
                begun.append(True)
                from virtual_values import begin

                begin()

        module._lazy_init = start_with_values


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch.cuda, once."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = _Wrapped(spec.loader)
        return spec


if os.environ.get("VIRTUAL_GPU_NAME"):
    sys.meta_path.insert(0, _Finder())
