"""An optimizer step of two micro-steps, from one of a single micro-step. Pure.

A second micro-step does what the first did; its gradients are added to those that are there, and
die where the first ones stayed. What else a candidate with accumulation does is read from the
opening of the trace, which has two micro-steps: how many batches are fetched, what the trainer does
between two micro-steps, and what of the first one the second takes the place of (its loss). Where
the opening's second micro-step is not like its first, `Irregular` is raised, and each shape has to
be traced with two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, takewhile

from autotune.estimate.records.events import (
    ALLOCATE,
    DATA,
    FREE,
    GRADIENTS,
    MICRO_STEP,
    MOVE,
    PHASE,
    STEP,
    WORKSPACES,
    Event,
    training_start,
)
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import renumber, without_passing_rows

_IDS_OF_SECOND = 1 << 43
"""Ids from here on are of the second micro-step, until all are renumbered."""
_IDS_BETWEEN = 1 << 44
_ONE_MICRO_STEP = (DATA, MICRO_STEP, "clip", STEP, "zero_grad")
_TWO_MICRO_STEPS = (DATA, MICRO_STEP, "clip", MICRO_STEP, "clip", STEP, "zero_grad")


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """The additions of a second micro-step to a step.

    Attributes:
        batch: how many storages a micro-batch has when it is fetched.
        between: how many events there are between two micro-steps.
        replaced: which of the storages that the first micro-step leaves beside gradients are
            replaced by the second; indices in order of their making.
    """

    batch: int
    between: int
    replaced: frozenset[int]


def accumulation_of(opening: Sequence[Event], step: Sequence[Event]) -> Accumulation:
    """Return what a second micro-step adds, from an opening that has two and a later step that has
    one.

    Raises:
        Irregular: the second micro-step of the opening does not do what the first did.
    """
    started = without_passing_rows(list(opening[training_start(opening) :]))
    parts = _phases(renumber(_without_workspaces(started)))
    if _names(parts) != _TWO_MICRO_STEPS:
        raise Irregular("the first optimizer step does not have two micro-steps")
    data, first, between, second, clip = parts[:5]
    if _canonical(_second_micro_step(first, {})) != _canonical(second):
        raise Irregular("the second micro-step does not do what the first did")
    batch = _allocated(data) - _allocated(_phases(step)[0])
    if not 0 < batch <= _allocated(data) // 2:
        raise Irregular("the first optimizer step does not fetch one micro-batch more")
    freed = {event[1] for event in takewhile(lambda event: event[0] == FREE, clip[1:])}
    return Accumulation(
        batch=batch,
        between=len(between) - 1,
        replaced=frozenset(n for n, event in enumerate(_remainder(first)) if event[1] in freed),
    )


def with_accumulation(step: Sequence[Event], accumulation: Accumulation) -> list[Event]:
    """Return the step with a second micro-step.

    Raises:
        Irregular: it does not have the phases of a step of one micro-step.
    """
    parts = _phases(step)
    if _names(parts) != _ONE_MICRO_STEP:
        raise Irregular("the optimizer step does not have one micro-step")
    data, first, clip, *rest = parts
    ids: dict[int, int] = {}
    batch = _until(data, accumulation.batch)
    second_batch = _copied(batch[1:], ids)
    second = _second_micro_step(first, ids)
    between = _copied(clip[: accumulation.between + 1], {}, _IDS_BETWEEN)
    replaced = [
        (FREE, event[1], event[5])
        for n, event in enumerate(_remainder(first))
        if n in accumulation.replaced
    ]
    # Behind the second micro-step the gradients are those of the first, all else is the second's.
    for key in _gradients(first):
        del ids[key]
    after = [_renamed(event, ids) for part in (clip[1:], *rest) for event in part]
    fetched = [*batch, *second_batch, *data[len(batch) :]]
    return renumber([*fetched, *first, *between, *second, clip[0], *replaced, *after])


def _phases(step: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each phase, its mark first."""
    parts: list[list[Event]] = []
    for event in step:
        if event[0] == PHASE:
            parts.append([])
        parts[-1].append(event)
    return parts


def _names(parts: Sequence[Sequence[Event]]) -> tuple[str, ...]:
    return tuple(part[0][1] for part in parts)


def _second_micro_step(first: Sequence[Event], ids: dict[int, int]) -> list[Event]:
    """Return the micro-step that follows the first; `ids` gets those of its storages, by the
    first's."""
    known = {event[1] for event in first if event[0] == ALLOCATE} | set(ids)
    gradients = _gradients(first)
    events: list[Event] = []
    for event in first:
        if event[0] == MOVE and event[1] in gradients and event[2] == GRADIENTS:
            event = (FREE, event[1], event[3])
        if event[0] == PHASE or event[1] in known:
            events.append(event)
    return _copied(events, ids)


def _gradients(events: Iterable[Event]) -> set[int]:
    return {event[1] for event in events if event[0] == MOVE and event[2] == GRADIENTS}


def _remainder(micro_step: Sequence[Event]) -> list[Event]:
    """Return what a micro-step leaves beside its gradients, in the order of its making."""
    freed = {event[1] for event in micro_step if event[0] == FREE} | _gradients(micro_step)
    return [e for e in micro_step if e[0] == ALLOCATE and e[1] not in freed]


def _copied(
    events: Sequence[Event], ids: dict[int, int], first_id: int = _IDS_OF_SECOND
) -> list[Event]:
    """Return the events on other storages; `ids` gets their ids, by those that are copied."""
    for event in events:
        if event[0] == ALLOCATE:
            ids[event[1]] = first_id + len(ids)
    return [_renamed(event, ids) for event in events]


def _renamed(event: Event, ids: dict[int, int]) -> Event:
    return event if event[0] == PHASE else (event[0], ids.get(event[1], event[1]), *event[2:])


def _until(data: Sequence[Event], storages: int) -> list[Event]:
    """Return the beginning of a phase, up to the last of so many storages."""
    made = accumulate(event[0] == ALLOCATE for event in data)
    end = next((n for n, count in enumerate(made) if count == storages), None)
    if end is None:
        raise Irregular("the optimizer step fetches less than a micro-batch")
    return list(data[: end + 1])


def _allocated(events: Iterable[Event]) -> int:
    return sum(event[0] == ALLOCATE for event in events)


def _without_workspaces(events: Sequence[Event]) -> list[Event]:
    workspaces = {e[1] for e in events if e[0] == ALLOCATE and e[3] == WORKSPACES}
    return [event for event in events if event[0] == PHASE or event[1] not in workspaces]


def _canonical(events: Sequence[Event]) -> list[Event]:
    """Return the events with their own storages numbered, without frees of others. What dies
    together, as where autograd lets go of a graph, is in order."""
    made = {event[1] for event in events if event[0] == ALLOCATE}
    numbered = renumber([e for e in events if e[0] == PHASE or e[1] in made], 1)
    runs = groupby(numbered, key=lambda event: event[0] == FREE)
    return [event for is_free, run in runs for event in (sorted(run) if is_free else run)]
