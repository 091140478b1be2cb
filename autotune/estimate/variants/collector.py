"""Python's collector, left out where nothing refers to itself. Pure."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Records are hundreds of thousands of tuples, which the collector would look through again and
    again. Not for traces: there it frees what a program leaves behind, as in a real training."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
