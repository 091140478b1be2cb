"""A trace of several optimizer steps as one record for each of them. Pure."""

from collections.abc import Iterable, Sequence

from autotune.estimate.host_bytes import TRAINING, since_training
from autotune.estimate.record import ALLOCATE, FREE, MOVE, NOWHERE, PHASE, Event


def step_records(events: Sequence[Event]) -> list[list[Event]]:
    """The record of a training from its first batch on, for each step after the first: of that
    first one, which makes the states, and of this step, as if there were no others.

    As the second begins, what lasts from the others is made, and what they let go of dies.
    """
    told = since_training(list(events))
    bounds = [n for n, event in enumerate(told) if event[0] == PHASE and event[1] == TRAINING]
    opening = told[: bounds[1]]
    live = _live(told[: bounds[1]], {})
    records, now = [], live
    for start, end in zip(bounds[1:], bounds[2:], strict=False):
        step = told[start:end]
        records.append([*opening, step[0], *_bridge(live, now), *step[1:]])
        now = _live(step, now)
    return records


def _live(events: Iterable[Event], before: dict[int, Event]) -> dict[int, Event]:
    """What is live after the events, as allocations with the part that they are in by then."""
    live = dict(before)
    for event in events:
        if event[0] == ALLOCATE:
            live[event[1]] = event
        elif event[0] == FREE:
            live.pop(event[1], None)
        elif event[0] == MOVE and event[1] in live:
            made = live[event[1]]
            live[event[1]] = (*made[:3], event[2], *made[4:])
    return live


def _bridge(before: dict[int, Event], after: dict[int, Event]) -> list[Event]:
    gone: list[Event] = [(FREE, key, NOWHERE) for key in before if key not in after]
    made = [event for key, event in after.items() if key not in before]
    moved: list[Event] = [
        (MOVE, key, event[3], event[5])
        for key, event in after.items()
        if key in before and before[key][3] != event[3]
    ]
    return [*gone, *made, *moved]
