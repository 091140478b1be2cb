"""A trace of several optimizer steps as one record for each of them. Pure."""

from collections.abc import Sequence

from autotune.estimate.records.events import DATA, FREE, MOVE, NOWHERE, PHASE, Event, live_after
from autotune.estimate.records.host import since_training


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
