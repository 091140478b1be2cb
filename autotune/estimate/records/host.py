"""A record in two: what is on the device, and what offloading puts into the host's memory. Pure."""

from collections.abc import Iterable

from autotune.estimate.allocator.pools import SMALL_REQUEST
from autotune.estimate.records.events import (
    ALLOCATE,
    HOST,
    MOVE,
    PHASE,
    Event,
    live_after,
    training_start,
)


def since_training(events: list[Event]) -> list[Event]:
    """Return the record from the first batch on, with what was there then.

    How an engine comes by its part of a model is another matter for a trace, which makes the model
    whole without storage, than for a job, which reads weights. What it makes and lets go of once it
    has its part is left in the allocator's cache, though.
    """
    start = training_start(events)
    lasting = live_after(events[:start], {})
    tail = events[:start]
    large = (n for n, e in enumerate(tail) if e[0] == ALLOCATE and e[2] > SMALL_REQUEST)
    lasting_numbers = [n for n in large if tail[n][1] in lasting]
    tail = tail[lasting_numbers[-1] + 1 :] if lasting_numbers else []
    passing = {event[1] for event in tail if event[0] == ALLOCATE} - set(lasting)
    return [*lasting.values(), *(e for e in tail if e[1] in passing), *events[start:]]


def on_host(events: Iterable[Event]) -> set[int]:
    """Return which storages of a record are on the host at last."""
    allocated = {e[1] for e in events if e[0] == ALLOCATE and e[3] == HOST}
    return allocated | {e[1] for e in events if e[0] == MOVE and e[2] == HOST}


def split_by_place(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """(The events on the device, those on the host); phases are in both."""
    host = on_host(events)
    host_events = [event for event in events if event[0] == PHASE or event[1] in host]
    return [event for event in events if event[0] == PHASE or event[1] not in host], host_events
