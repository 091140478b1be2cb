"""Autograd's in-place accumulation, put back into a trace of fake tensors. Pure.

Autograd adds a second gradient into the first one's storage where it holds the last reference to
it (torch/csrc/autograd/input_buffer.cpp); for tensor subclasses, fake ones too, it makes a new
one. The tracer marks such additions ("i", new, old); where the old storage died right afterwards,
the engine did hold the last reference, and the two are one.
"""

import sys
from types import FrameType

from autotune.estimate.records.events import ALLOCATE, FREE, MOVE, PHASE, Event

_BETWEEN = (__file__, "estimate/tracing/tracer.py", "_dynamo", "_compile.py", "_python_dispatch")
"""Files of the frames between an operator and whoever called it: ours, and torch's wrappers."""


def merge_accumulation(events: list[Event]) -> list[Event]:
    """Return the events without the marks, merged storages under the id of the first."""
    alias: dict[int, int] = {}
    dropped: set[int] = set()
    for index, event in enumerate(events):
        if event[0] != "i":
            continue
        _, new, old = event
        for later in range(index + 1, len(events)):
            kind = events[later][0]
            if kind not in (FREE, MOVE):
                break
            if kind == FREE and events[later][1] == old:
                alias[new] = old
                dropped.add(later)
                break

    def root(key: int) -> int:
        while key in alias:
            key = alias[key]
        return key

    out: list[Event] = []
    for index, event in enumerate(events):
        kind = event[0]
        if kind == "i" or index in dropped or (kind == ALLOCATE and event[1] in alias):
            continue
        out.append(event if kind == PHASE else (kind, root(event[1]), *event[2:]))
    return out


def called_by_engine() -> bool:
    """True if the running `add` is autograd's own accumulation, not one of a Python function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        if not any(name in frame.f_code.co_filename for name in _BETWEEN):
            return False
        frame = frame.f_back
    return False
