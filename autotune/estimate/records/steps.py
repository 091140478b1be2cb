"""A trace of several optimizer steps as one record for each of them. Pure."""

from collections.abc import Sequence

from autotune.estimate.records.events import DATA, FREE, MOVE, NOWHERE, PHASE, Event, live_after
from autotune.estimate.records.host import since_training


def step_records(events: Sequence[Event]) -> list[list[Event]]:
    """The record of a training from its first batch on, for each step after the first: of that
    first one, which makes the states, and of this step, as if there were no others.

    As the second begins, what lasts from the others is made, and what they let go of dies.
    """
    told = since_training(list(events))
    bounds = [n for n, event in enumerate(told) if event[0] == PHASE and event[1] == DATA]
    opening = told[: bounds[1]]
    live = live_after(told[: bounds[1]], {})
    records, now = [], live
    for start, end in zip(bounds[1:], bounds[2:], strict=False):
        step = told[start:end]
        records.append([*opening, step[0], *_bridge(live, now), *step[1:]])
        now = live_after(step, now)
    return records


def _bridge(before: dict[int, Event], after: dict[int, Event]) -> list[Event]:
    """What the steps between changed, in no layer: none of them is run through here. (ZeRO-3 leaves
    an empty tensor in the place of each weight that a layer let go of.)"""
    gone: list[Event] = [(FREE, key, NOWHERE) for key in before if key not in after]
    made = [(*event[:5], NOWHERE) for key, event in after.items() if key not in before]
    moved: list[Event] = [
        (MOVE, key, event[3], NOWHERE)
        for key, event in after.items()
        if key in before and before[key][3] != event[3]
    ]
    return [*gone, *made, *moved]
