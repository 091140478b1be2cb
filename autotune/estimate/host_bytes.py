"""A record in two: what is on the device, and what offloading puts into the host's memory. Pure."""

from collections.abc import Iterable

from autotune.estimate.record import ALLOCATE, HOST, MOVE, PHASE, Event, live_after, training_start


def since_training(events: list[Event]) -> list[Event]:
    """The record from the first batch on, with what was there then.

    How an engine comes by its part of a model is another matter for a trace, which makes the model
    whole without storage, than for a job, which reads weights.
    """
    start = training_start(events)
    return [*live_after(events[:start], {}).values(), *events[start:]]


def on_host(events: Iterable[Event]) -> set[int]:
    """Which storages of a record are on the host at last."""
    found = {e[1] for e in events if e[0] == ALLOCATE and e[3] == HOST}
    return found | {e[1] for e in events if e[0] == MOVE and e[2] == HOST}


def divided_by_place(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """(The events on the device, those on the host); phases are in both."""
    host = on_host(events)
    there = [event for event in events if event[0] == PHASE or event[1] in host]
    return [event for event in events if event[0] == PHASE or event[1] not in host], there
