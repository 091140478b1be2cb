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
from itertools import groupby

from autotune.estimate.records.events import (
    ALLOCATE,
    FREE,
    GRADIENTS,
    MOVE,
    PHASE,
    WORKSPACES,
    Event,
    training_start,
)
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import renumber, without_passing_rows

_OWN_OF_SECOND = 1 << 43
"""Ids from here on are of the second micro-step, until all are renumbered."""
_PHASES = ("data", "micro-step", "clip", "micro-step", "clip", "step", "zero_grad")


@dataclass(frozen=True, kw_only=True)
class Accumulation:
    """What a second micro-step adds to a step.

    Attributes:
        batch: how many storages a micro-batch has when it is fetched.
        between: how many events there are between two micro-steps.
        replaced: what the second micro-step takes the place of, of that which the first one leaves
            beside gradients: the how-many-th.
    """

    batch: int
    between: int
    replaced: frozenset[int]


def accumulation_of(opening: Sequence[Event], step: Sequence[Event]) -> Accumulation:
    """What a second micro-step adds, from an opening that has two and a later step that has one.

    Raises:
        Irregular: the second micro-step of the opening does not do what the first did.
    """
    started = without_passing_rows(list(opening[training_start(opening) :]))
    parts = _phases(renumber(_without_workspaces(started)))
    if tuple(part[0][1] for part in parts) != _PHASES:
        raise Irregular("the first optimizer step does not have two micro-steps")
    data, first, between, second, clip = parts[:5]
    left = [event[1] for event in _left(first)]
    freed_at_once = set()
    for event in clip[1:]:
        if event[0] != FREE:
            break
        freed_at_once.add(event[1])
    found = Accumulation(
        batch=_allocated(data) - _allocated(_phases(step)[0]),
        between=len(between) - 1,
        replaced=frozenset(n for n, key in enumerate(left) if key in freed_at_once),
    )
    alone = [*data, *first, *(e for e in clip if e[0] != FREE or e[1] not in left)]
    if _canonical(_second(_phases(alone)[1], {})) != _canonical(second):
        raise Irregular("the second micro-step does not do what the first did")
    return found


def with_accumulation(step: Sequence[Event], accumulation: Accumulation) -> list[Event]:
    """The step with a second micro-step.

    Raises:
        Irregular: it does not have the phases of a step of one micro-step.
    """
    parts = _phases(step)
    if tuple(part[0][1] for part in parts) != (*_PHASES[:3], *_PHASES[5:]):
        raise Irregular("the optimizer step does not have one micro-step")
    data, first, clip, *rest = parts
    new: dict[int, int] = {}
    batch = _until(data, accumulation.batch)
    second_batch = _copied(batch[1:], new)
    second = _second(first, new)
    between = clip[: accumulation.between + 1]
    between = [between[0], *_copied(between[1:], {}, first=2 * _OWN_OF_SECOND)]
    replaced = [
        (FREE, event[1], event[5])
        for n, event in enumerate(_left(first))
        if n in accumulation.replaced
    ]
    gradients = _gradients(first)
    ours = {old: key for old, key in new.items() if old not in gradients}
    after = [_renamed(event, ours) for part in (clip[1:], *rest) for event in part]
    return renumber(
        [*batch, *second_batch, *data[len(batch) :], *first, *between, *second, clip[0]]
        + [*replaced, *after]
    )


def _phases(step: Iterable[Event]) -> list[list[Event]]:
    """The events of each phase, its mark first."""
    parts: list[list[Event]] = []
    for event in step:
        if event[0] == PHASE:
            parts.append([])
        parts[-1].append(event)
    return parts


def _second(first: Sequence[Event], new: dict[int, int]) -> list[Event]:
    """The second micro-step; `new` gets the ids of its storages, by those of the first."""
    own = {event[1] for event in first if event[0] == ALLOCATE} | set(new)
    gradients = _gradients(first)
    events: list[Event] = []
    for event in first:
        if event[0] == MOVE and event[1] in gradients and event[2] == GRADIENTS:
            event = (FREE, event[1], event[3])
        if event[0] == PHASE or event[1] in own:
            events.append(event)
    return _copied(events, new)


def _gradients(events: Iterable[Event]) -> set[int]:
    return {event[1] for event in events if event[0] == MOVE and event[2] == GRADIENTS}


def _left(micro_step: Sequence[Event]) -> list[Event]:
    """What a micro-step leaves beside its gradients, in the order of its making."""
    freed = {event[1] for event in micro_step if event[0] == FREE} | _gradients(micro_step)
    return [e for e in micro_step if e[0] == ALLOCATE and e[1] not in freed]


def _copied(
    events: Iterable[Event], new: dict[int, int], first: int = _OWN_OF_SECOND
) -> list[Event]:
    """The events on storages of their own; `new` gets their ids."""
    events = list(events)
    for event in events:
        if event[0] == ALLOCATE:
            new[event[1]] = first + len(new)
    return [_renamed(event, new) for event in events]


def _renamed(event: Event, new: dict[int, int]) -> Event:
    return event if event[0] == PHASE else (event[0], new.get(event[1], event[1]), *event[2:])


def _until(data: Sequence[Event], storages: int) -> list[Event]:
    """The beginning of a phase with so many storages."""
    made = 0
    for n, event in enumerate(data):
        made += event[0] == ALLOCATE
        if made == storages:
            return list(data[: n + 1])
    return list(data[:1])


def _allocated(events: Iterable[Event]) -> int:
    return sum(event[0] == ALLOCATE for event in events)


def _without_workspaces(events: Sequence[Event]) -> list[Event]:
    kept = {event[1] for event in events if event[0] == ALLOCATE and event[3] == WORKSPACES}
    return [event for event in events if event[0] == PHASE or event[1] not in kept]


def _canonical(events: Sequence[Event]) -> list[Event]:
    """The events with their own storages numbered, without frees of others. What dies together, as
    where autograd lets go of a graph, is in order."""
    own = {event[1] for event in events if event[0] == ALLOCATE}
    kept = renumber([event for event in events if event[0] == PHASE or event[1] in own], 1)
    runs = groupby(kept, key=lambda event: event[0] == FREE)
    return [event for is_free, run in runs for event in (sorted(run) if is_free else run)]
