"""The first optimizer step of a run, with micro-batches as large as those of the later ones. Pure.

A trace begins with one short row whatever is planned, so that candidates can share it. A real run
does not: its first micro-steps leave large free blocks in the allocator's cache, and the states of
the optimizer are cut out of these. Of the short step is taken what it leaves for good (workspaces,
states) and what its optimizer does beside them; the rest is that of a later step, which is alike.
Where rows are of many lengths, the micro-batches of a first step are smaller than the worst, and
what they leave fits the worst badly: `with_smaller_batches`. Known errors: what grows with the
square of a length is made smaller as the rest is. Where what follows a workspace is not met again
(chunks of another number), the workspace is made where its phase begins.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    FREE,
    MICRO_STEP,
    NOWHERE,
    PHASE,
    STEP,
    WEIGHTS,
    Event,
    training_start,
)
from autotune.estimate.records.shapes import optimizer_part, passing_of_step, renumber

OWN_OF_FIRST = 1 << 42
"""Ids from here on are of the first step's own storages; those below of other parts of a record."""
EMPTY_CACHE: Event = (FREE, -1, NOWHERE)
_END = ("end", 0)
_Place = tuple[object, ...]
"""Name and count of a phase; for other events also their kind, and their number in the phase."""


def with_first_step(opening: Sequence[Event], step: Sequence[Event]) -> list[Event]:
    """Return the opening with its optimizer step as large as `step`.

    Args:
        opening: building the model, then one optimizer step of a short row.
        step: a later optimizer step, without what it frees of others.
    """
    start = training_start(opening)
    building, short_step = list(opening[:start]), list(opening[start:])
    states = {event[1] for event in optimizer_part(short_step) if event[0] == ALLOCATE}
    first = list(_with_places(_without_optimizer(renumber(list(step), OWN_OF_FIRST))))
    lasting_events = _lasting_events(
        short_step, _lasting(building, short_step) - states, {place for place, _ in first}
    )
    out = [*building, EMPTY_CACHE]  # accelerate gives the cache back when a training begins
    for place, event in first:
        if event[0] == PHASE:
            out += [event, *lasting_events.get(place, [])]
            if event[1] == STEP:
                out += [e for e in short_step if e[0] != PHASE and e[1] in states]
        else:
            out += [*lasting_events.get(place, []), event]
    return [*out, *_left_behind(event for _, event in first), *lasting_events.get(_END, [])]


def with_smaller_batches(
    step: Sequence[Event], building: Sequence[Event], shares: Sequence[float]
) -> list[Event]:
    """Return the step with the micro-batches of its micro-steps made smaller.

    Args:
        building: what makes the model. Storages as large as its weights, or as those that an
            engine gathers, keep their size.
        shares: of each micro-step the share of its micro-batch that is left; the last one counts
            for all that follow.
    """
    allocations = [event for event in (*building, *step) if event[0] == ALLOCATE]
    fixed_sizes = {event[2] for event in allocations if event[3] in (WEIGHTS, COMMUNICATION)}
    fixed_sizes |= {size // 2 for size in fixed_sizes} | {
        2 * size for size in fixed_sizes
    }  # in other precisions
    out, phase, met = [], "", 0
    for event in step:
        if event[0] == PHASE:
            phase, met = event[1], met + (event[1] == MICRO_STEP)
        elif event[0] == ALLOCATE and phase == MICRO_STEP and event[2] not in fixed_sizes:
            share = shares[min(met, len(shares)) - 1]
            event = (*event[:2], round(event[2] * share), *event[3:])
        out.append(event)
    return out


def _without_optimizer(step: list[Event]) -> list[Event]:
    """Return the step without what its optimizer makes and lets go of."""
    passing = {event[1] for event in passing_of_step(step)}
    return [event for event in step if event[0] == PHASE or event[1] not in passing]


def _lasting(building: list[Event], short_step: list[Event]) -> set[int]:
    """Return what lives longer than the step, or was there before."""
    freed = {event[1] for event in short_step if event[0] == FREE}
    allocated = {event[1] for event in short_step if event[0] == ALLOCATE}
    return (allocated - freed) | {event[1] for event in building if event[0] == ALLOCATE}


def _lasting_events(
    short_step: list[Event], lasting: set[int], known_places: set[_Place]
) -> dict[_Place, list[Event]]:
    """Return what the short step does to lasting storages, by the place that follows in the other
    step."""
    lasting_events: dict[_Place, list[Event]] = {}
    passing = [event for event in short_step if event[0] == PHASE or event[1] not in lasting]
    places = _with_places(passing)
    pending: list[Event] = []
    for event in short_step:
        if event[0] != PHASE and event[1] in lasting:
            pending.append(event)
            continue
        place, _ = next(places)
        if pending:
            _add_at(lasting_events, place, pending, known_places)
            pending = []
    lasting_events.setdefault(_END, []).extend(pending)
    return lasting_events


def _add_at(
    lasting_events: dict[_Place, list[Event]],
    place: _Place,
    events: list[Event],
    known_places: set[_Place],
) -> None:
    target = next(
        (candidate for candidate in (place, place[:2]) if candidate in known_places), _END
    )
    lasting_events.setdefault(target, []).extend(events)


def _with_places(events: Sequence[Event]) -> Iterator[tuple[_Place, Event]]:
    """Yield each event with its place."""
    phases, times = Counter[object](), Counter[object]()
    phase: _Place = ("", 0)
    for event in events:
        if event[0] == PHASE:
            phases[event[1]] += 1
            phase, times = (event[1], phases[event[1]]), Counter()
            yield phase, event
            continue
        what = (event[0], event[4] if event[0] == ALLOCATE else "", event[-1])
        times[what] += 1
        yield (*phase, what, times[what]), event


def _left_behind(step: Iterator[Event]) -> list[Event]:
    """Return the frees of what a step leaves for the next one to let go of."""
    live: dict[int, None] = {}
    for event in step:
        if event[0] == ALLOCATE:
            live[event[1]] = None
        elif event[0] == FREE:
            live.pop(event[1], None)
    return [(FREE, key, NOWHERE) for key in live]
