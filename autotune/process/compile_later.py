"""Imported behind torch: `torch.compile` begins when what it was asked for is called.

Libraries decorate functions with it while they are imported (bitsandbytes): torch then imports its
compiler, two of the eight seconds that the stack takes. A trace compiles nothing. Not for probes:
their processes are to be as large as those of a training.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_compile_now = torch.compile


def compile_later(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`torch.compile`, at the first call of what it returns."""
    if function is None:
        return functools.partial(compile_later, **options)
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiled:
            compiled.append(_compile_now(function, **options))
        return compiled[0](*args, **kwargs)

    return call


torch.compile = compile_later
