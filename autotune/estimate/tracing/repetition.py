"""What a program does over and over is run once, and written down as often as it is done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from autotune.estimate.records.events import ALLOCATE, FREE
from autotune.estimate.tracing.tracer import Tracer


@contextmanager
def repeated(tracer: Tracer, times: int) -> Iterator[None]:
    """What is done inside is done `times` times in all.

    Only for what leaves no storage behind, and lets go of none that was there before.

    Raises:
        ValueError: it does.
    """
    begin, work_begin = len(tracer.events), len(tracer.works or [])
    yield
    if times == 1:
        return
    done = tracer.events[begin:]
    if not _is_closed(done):
        raise ValueError("what is to be repeated leaves storages behind, or lets go of others")
    for _ in range(times - 1):
        _write_down(tracer, done)
    if tracer.works is not None:
        tracer.works += tracer.works[work_begin:] * (times - 1)


def _is_closed(events: Sequence[tuple[Any, ...]]) -> bool:
    made = [event[1] for event in events if event[0] == ALLOCATE]
    freed = [event[1] for event in events if event[0] == FREE]
    return len(events) == len(made) + len(freed) and sorted(made) == sorted(freed)


def _write_down(tracer: Tracer, events: Sequence[tuple[Any, ...]]) -> None:
    keys: dict[int, int] = {}
    for event in events:
        if event[0] == ALLOCATE:
            keys[event[1]] = tracer.allocate(*event[2:])
        else:
            tracer.free(keys[event[1]])
