"""One trace of a few shapes as the record of any micro-batch and any depth. Pure.

A trace runs one optimizer step for each of a few shapes. Between two shapes of the same variant
through the program only the sizes differ, and each size is a polynomial of the shape (rows at one
length; tokens, where rows are laid one behind the other): linear, or quadratic where an attention
mask of tokens x tokens is made. So the record of another shape has the same events with sizes from
that polynomial, as many chunks of the loss as it needs, and as many layers as the model has.
Where the events of the shapes do not match, `Irregular` is raised, and the shape is traced itself.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

from autotune.estimate.records.events import (
    ALLOCATE,
    DATA,
    FREE,
    MICRO_STEP,
    NOWHERE,
    PHASE,
    STEP,
    Event,
    Work,
    chunk,
)
from autotune.estimate.records.layers import (
    CHUNKS,
    LAYERS,
    Irregular,
    with_chunks,
    with_layers,
)

OWN, OWN_OF_OTHER = 1 << 40, 1 << 41
"""Ids from here on are a step's own; those below are of what was there before."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the known sizes in the polynomial through them, over one denominator."""

    numerators: tuple[int, ...]
    denominator: int

    def interpolate(self, values: Sequence[int]) -> int:
        """Return the polynomial's value, rounded; at least 0."""
        first = values[0]
        if all(value == first for value in values):
            return first
        mixed = sum(w * value for w, value in zip(self.numerators, values, strict=True))
        return max((2 * mixed + self.denominator) // (2 * self.denominator), 0)


def lagrange(sizes: Sequence[int], size: int) -> Weights:
    """Return the weights of `sizes`, all different, at `size`."""
    weights = []
    for index, node in enumerate(sizes):
        weight = Fraction(1)
        for other_index, other_node in enumerate(sizes):
            if other_index != index:
                weight *= Fraction(size - other_node, node - other_node)
        weights.append(weight)
    common = math.lcm(*(weight.denominator for weight in weights))
    return Weights(numerators=tuple(int(w * common) for w in weights), denominator=common)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The events of a trace, divided: what comes before, and each optimizer step."""

    opening: list[Event]
    """Building the model and the first optimizer step, which makes the optimizer's state."""
    steps: list[list[Event]]
    """Each later optimizer step."""


def divide(events: Sequence[Event]) -> Steps:
    """Cut a trace where the batches of a step are fetched; the first step is the opening's."""
    bounds = [n for n, event in enumerate(events) if event[0] == PHASE and event[1] == DATA][1:]
    opening = list(events[: bounds[0]])
    steps: list[list[Event]] = []
    left_behind: list[Event] = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        part = events[start:end]
        own_ids = {event[1] for event in part if event[0] == ALLOCATE}
        if not steps:  # the batch and the loss of the first step die in the second
            left_behind = [e for e in part if e[0] == FREE and e[1] not in own_ids]
        own_events = [event for event in part if event[0] == PHASE or event[1] in own_ids]
        steps.append(renumber(without_passing_rows(own_events)))
    return Steps(opening=[*opening, *left_behind], steps=steps)


def without_passing_rows(step: list[Event]) -> list[Event]:
    """Return the step without what collating its rows makes and drops, for each row."""
    end = next((n for n, e in enumerate(step) if e[0] == PHASE and e[1] == MICRO_STEP), 0)
    allocated = {event[1] for event in step[:end] if event[0] == ALLOCATE}
    passing = {event[1] for event in step[:end] if event[0] == FREE and event[1] in allocated}
    return [e for n, e in enumerate(step) if n >= end or e[0] == PHASE or e[1] not in passing]


def renumber(step: list[Event], first: int | None = None) -> list[Event]:
    """Return the step's own storages numbered in their order: steps of one variant are alike
    then."""
    new: dict[int, int] = {}
    for event in step:
        if event[0] == ALLOCATE:
            new[event[1]] = (first or OWN) + len(new)
    return [
        event if event[0] == PHASE else (event[0], new.get(event[1], event[1]), *event[2:])
        for event in step
    ]


def without_accumulation(step: list[Event]) -> list[Event]:
    """Return the step with its first micro-step only: what a candidate without accumulation
    does."""
    marks = [n for n, e in enumerate(step) if e[0] == PHASE and e[1] == MICRO_STEP]
    if len(marks) < 2:
        return step
    last = next((n for n in range(marks[-1] + 1, len(step)) if step[n][0] == PHASE), len(step))
    allocated = {e[1] for e in step[marks[1] : last] if e[0] == ALLOCATE}
    first_micro_step = step[: marks[1]] + step[last:]
    return [event for event in first_micro_step if event[0] == PHASE or event[1] not in allocated]


def with_optimizer_step(step: list[Event], donor: list[Event]) -> list[Event]:
    """Return the step with the optimizer's part taken from another one: what it makes only for
    itself.

    Both may be openings, too: then the state that is made there stays, and comes first.
    """
    highest = max((event[1] for event in step if event[0] == ALLOCATE), default=0)
    donor_events = renumber(passing_of_step(donor), OWN_OF_OTHER + highest)
    part = optimizer_part(step)
    own_ids = {event[1] for event in _passing(part)}
    lasting = [event for event in part if event[1] not in own_ids]
    state_end = max((n for n, event in enumerate(lasting, 1) if event[0] == ALLOCATE), default=0)
    begin = next(n for n, e in enumerate(step) if e[0] == PHASE and e[1] == STEP) + 1
    return [
        *step[:begin],
        *lasting[:state_end],
        *donor_events,
        *lasting[state_end:],
        *step[begin + len(part) :],
    ]


def passing_of_step(step: list[Event]) -> list[Event]:
    """Return what the optimizer of a step makes and lets go of."""
    return _passing(optimizer_part(step))


def optimizer_part(step: list[Event]) -> list[Event]:
    """Return the events of the optimizer's own step."""
    begin = next(n for n, e in enumerate(step) if e[0] == PHASE and e[1] == STEP)
    end = next((n for n in range(begin + 1, len(step)) if step[n][0] == PHASE), len(step))
    return step[begin + 1 : end]


def _passing(part: list[Event]) -> list[Event]:
    """Return what is made and let go of in the same part."""
    allocated = {event[1] for event in part if event[0] == ALLOCATE}
    freed = {event[1] for event in part if event[0] == FREE}
    return [event for event in part if event[1] in allocated & freed]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A traced shape: its measure (rows or tokens), its chunks, its events and its work."""

    size: int
    chunks: int
    events: list[Event]
    work: list[Work]


@dataclass(frozen=True, kw_only=True)
class ShapeFamily:
    """Shapes of one variant; from them the events of any size."""

    shapes: tuple[Shape, ...]

    def events(self, size: int, chunks: int) -> list[Event]:
        """Return the events of one step at `size`, with `chunks` chunks of the loss.

        Raises:
            Irregular: the shapes do not have the same events.
        """
        for shape in self.shapes:
            if (shape.size, shape.chunks) == (size, chunks):
                return shape.events
        weights = lagrange([shape.size for shape in self.shapes], size)
        resized_events = [_few_chunks(shape) for shape in self.shapes]
        if len({len(events) for events in resized_events}) != 1:
            raise Irregular("the traced shapes have different numbers of events")
        out = [
            _interpolate_event(counterparts, weights)
            for counterparts in zip(*resized_events, strict=True)
        ]
        return with_chunks(out, CHUNKS.smallest, chunks) if self.shapes[0].chunks else out

    def work(
        self, size: int, chunks: int, traced_layers: int, layers: int, period: int = 1
    ) -> Counter[Work]:
        """Return the work of one micro-step at `size`: each operator, and how often. Regions are
        left out.

        Raises:
            Irregular: the shapes do not have the same operators.
        """
        total: Counter[Work] = Counter()
        if len(self.shapes) == 1:
            only = self.shapes[0]
            resized = chunks != only.chunks and min(chunks, only.chunks) >= CHUNKS.smallest
            for work in _work_of_few_chunks(only) if resized else only.work:
                times = _layer_times(work.region, traced_layers, layers, period)
                times *= _chunk_times(work.region, chunks) if resized else 1
                total[replace(work, region=NOWHERE)] += times
            return +total
        weights = lagrange([shape.size for shape in self.shapes], size)
        resized_works = [_work_of_few_chunks(shape) for shape in self.shapes]
        if len({len(works) for works in resized_works}) != 1:
            raise Irregular("the traced shapes have different numbers of operators")
        for counterparts in zip(*resized_works, strict=True):
            if len({work.signature for work in counterparts}) != 1:
                raise Irregular("the traced shapes have different operators")
            region = counterparts[0].region
            times = _layer_times(region, traced_layers, layers, period)
            times *= _chunk_times(region, chunks)
            total[_interpolate_work(counterparts, weights)] += times
        return +total


def _few_chunks(shape: Shape) -> list[Event]:
    if not shape.chunks:
        return shape.events
    if shape.chunks < CHUNKS.smallest:
        raise Irregular(f"{shape.chunks} chunks are too few")
    return renumber(with_chunks(shape.events, shape.chunks, CHUNKS.smallest))


def _work_of_few_chunks(shape: Shape) -> list[Work]:
    """Return the operators, those of chunks between the ends and the middle one left out."""
    if not shape.chunks:
        return shape.work
    if shape.chunks < CHUNKS.smallest:
        raise Irregular(f"{shape.chunks} chunks are too few")
    works = []
    for work in shape.work:
        index = -work.region - 1
        if work.region >= 0 or index <= CHUNKS.first:
            works.append(work)
        elif index >= shape.chunks - CHUNKS.last:
            works.append(replace(work, region=chunk(CHUNKS.smallest - (shape.chunks - index))))
    return _last_as_full(works)


def _last_as_full(works: list[Work]) -> list[Work]:
    """Return the operators, those of the last chunk, which may be a part, as large as the middle
    one's."""
    slots = list(_slots(works))
    middle, last = chunk(CHUNKS.first), chunk(CHUNKS.smallest - 1)
    full = {slot: work for slot, work in zip(slots, works, strict=True) if work.region == middle}
    return [
        replace(full.get(slot, work), region=last) if work.region == last else work
        for slot, work in zip(slots, works, strict=True)
    ]


def _slots(works: list[Work]) -> Iterator[tuple[int, object, int]]:
    """Yield each operator's run of its stretch, its name, and its number among those of that
    name."""
    runs = Counter[int]()
    for region, run in groupby(works, key=lambda work: work.region):
        runs[region] += 1
        times = Counter[object]()
        for work in run:
            name = work.signature[:-1]
            times[name] += 1
            yield runs[region], name, times[name]


def _layer_times(region: int, traced_layers: int, layers: int, period: int) -> int:
    """Return how often an operator of a trace of few layers is run in the whole model."""
    if region <= 0 or traced_layers == layers:
        return 1
    index = (region - 1) // period
    if index < LAYERS.first or index >= -(-traced_layers // period) - LAYERS.last:
        return 1
    return LAYERS.between(-(-layers // period)) if index == LAYERS.first else 0


def _chunk_times(region: int, chunks: int) -> int:
    """Return how often an operator of the middle chunk is run."""
    return max(CHUNKS.between(chunks), 1) if -region - 1 == CHUNKS.first else 1


def _interpolate_event(counterparts: tuple[Event, ...], weights: Weights) -> Event:
    first = counterparts[0]
    if any(event[0] != first[0] or event[1] != first[1] for event in counterparts[1:]):
        raise Irregular("the traced shapes have different events")
    if first[0] != ALLOCATE:
        return first
    if any(event[4] != first[4] for event in counterparts[1:]):
        raise Irregular("the traced shapes have different operators")
    return (*first[:2], weights.interpolate([event[2] for event in counterparts]), *first[3:])


def _interpolate_work(counterparts: tuple[Work, ...], weights: Weights) -> Work:
    first = counterparts[0]
    return replace(
        first,
        dims=tuple(
            max(weights.interpolate(dims), 1)
            for dims in zip(*(w.dims for w in counterparts), strict=True)
        ),
        flops=weights.interpolate([work.flops for work in counterparts]),
        moved_bytes=weights.interpolate([work.moved_bytes for work in counterparts]),
        region=NOWHERE,
    )


def whole_record(
    opening: list[Event], step: list[Event], traced_layers: int, layers: int, period: int = 1
) -> list[Event]:
    """Return opening and step together, with all the model's layers.

    Raises:
        Irregular: the layers are not alike.
    """
    record = [*opening, *step]
    if traced_layers == layers or not traced_layers:
        return record
    return with_layers(record, traced_layers, layers, period)
