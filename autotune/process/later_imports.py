"""Imported behind torch: what a trace does not need is imported when it is first called for, and
what libraries look up meanwhile is found with less work.

Of the seconds that the stack takes two are torch's compiler, where bitsandbytes is installed, and
one the rest. Not for probes: their processes are to be as large as those of a training.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from autotune.process import import_lookups

_compile_now = torch.compile


def compile_later(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`torch.compile`, at the first call of what it returns.

    Libraries decorate functions with it while they are imported (bitsandbytes): torch would then
    import its compiler.
    """
    if function is None:
        return functools.partial(compile_later, **options)
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiled:
            compiled.append(_compile_now(function, **options))
        return compiled[0](*args, **kwargs)

    return call


@contextlib.contextmanager
def solver_later() -> Iterator[None]:
    """Within this block scipy's solver of assignments is imported at its first call.

    Transformers imports it for the losses of object detection.
    """

    def linear_sum_assignment(*args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(name).linear_sum_assignment(*args, **kwargs)

    name = "scipy.optimize"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = SimpleNamespace(linear_sum_assignment=linear_sum_assignment)  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def look_up_with_less_work() -> None:
    """Put in the lookups of `import_lookups.py`; a library without these functions stays as it
    is."""
    # Transformers and TRL both read the names of all that is installed.
    importlib.metadata.packages_distributions = (
        import_lookups.packages_distributions
        if sys.version_info < (3, 12)
        else functools.cache(importlib.metadata.packages_distributions)
    )
    registering: Any = importlib.import_module("torch._library.utils")
    if hasattr(registering, "get_source"):
        registering.get_source = import_lookups.source_of_caller
    importing: Any = importlib.import_module("transformers.utils.import_utils")
    if read := getattr(importing, "fetch__all__", None):
        importing.fetch__all__ = functools.partial(import_lookups.exported_names, read)


torch.compile = compile_later
look_up_with_less_work()
importlib.import_module("accelerate")  # before the block: it may want more of scipy
with solver_later():
    importlib.import_module("transformers.loss.loss_utils")
