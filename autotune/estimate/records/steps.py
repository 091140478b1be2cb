"""A trace of several optimizer steps as one record for each of them, and each record in two. Pure.

One part is on the device, the other is what offloading puts into the host's memory.
"""

from collections.abc import Iterable, Sequence

from autotune.estimate.allocator.pools import SMALL_REQUEST
from autotune.estimate.records.events import (
    ALLOCATE,
    DATA,
    FREE,
    HOST,
    MOVE,
    NOWHERE,
    PHASE,
    Event,
    live_after,
    training_start,
)


def step_records(events: Sequence[Event]) -> list[list[Event]]:
    """Return the record of a training from its first batch on, for each step after the first: of
    that first one, which makes the states, and of this step, as if there were no others.

    As the second begins, what lasts from the others is made, and what they let go of dies.
    """
    record = since_training(list(events))
    bounds = [n for n, event in enumerate(record) if event[0] == PHASE and event[1] == DATA]
    opening = record[: bounds[1]]
    live = live_after(record[: bounds[1]], {})
    records, live_now = [], live
    for start, end in zip(bounds[1:], bounds[2:], strict=False):
        step = record[start:end]
        records.append([*opening, step[0], *_bridge(live, live_now), *step[1:]])
        live_now = live_after(step, live_now)
    return records


def _bridge(live_before: dict[int, Event], live_now: dict[int, Event]) -> list[Event]:
    """Return events for what the steps between changed, in no layer: none of them is run here.
    (ZeRO-3 leaves an empty tensor in the place of each weight that a layer let go of.)"""
    frees: list[Event] = [(FREE, key, NOWHERE) for key in live_before if key not in live_now]
    allocations = [
        (*event[:5], NOWHERE) for key, event in live_now.items() if key not in live_before
    ]
    moves: list[Event] = [
        (MOVE, key, event[3], NOWHERE)
        for key, event in live_now.items()
        if key in live_before and live_before[key][3] != event[3]
    ]
    return [*frees, *allocations, *moves]


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
    """Return the storages that are on the host at the end of a record."""
    allocated = {e[1] for e in events if e[0] == ALLOCATE and e[3] == HOST}
    return allocated | {e[1] for e in events if e[0] == MOVE and e[2] == HOST}


def split_by_place(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Return the events on the device and those on the host; phases are in both."""
    host = on_host(events)
    host_events = [event for event in events if event[0] == PHASE or event[1] in host]
    return [event for event in events if event[0] == PHASE or event[1] not in host], host_events


def pinned(event: Event) -> Event:
    """Return an event of the host with the bytes that torch pins for it: the next power of two."""
    return (
        (*event[:2], 1 << (event[2] - 1).bit_length(), *event[3:])
        if event[0] == ALLOCATE
        else event
    )
