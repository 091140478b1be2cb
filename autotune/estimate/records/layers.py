"""A record of few decoder layers as a record of many; a loss of few chunks as one of many. Pure.

The stretches of a program that belong to one layer repeat. A trace of four layers holds the first
two and the last one, which may be special, and one between, of which copies are inserted or left
out. Of chunks the last two are kept: where the head is trained, its gradient passes through both.
What an event refers to is found by its distance: what the middle layer frees of the layer below,
each copy frees of the copy below. The rule is checked by comparing with whole traces
(`benchmarks/estimate_rules`); where the repeated stretches are not alike, `Irregular` is raised.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from autotune.estimate.records.events import ALLOCATE, FREE, MOVE, PHASE, Event, chunk, layer


@dataclass(frozen=True)
class Ends:
    """Counts of the stretches that are kept at the beginning and at the end; the stretch that
    follows the first ones is copied."""

    first: int
    last: int

    @property
    def smallest(self) -> int:
        """The fewest stretches that can stand for any number of them."""
        return self.first + 1 + self.last

    def between(self, count: int) -> int:
        """Return how many of `count` stretches are copies of one."""
        return count - self.first - self.last


LAYERS, CHUNKS = Ends(first=2, last=1), Ends(first=2, last=2)

_Slot = tuple[int, int, str, int]
"""Phase, run of the stretch in this phase, operator, number among its storages in this run."""


class Irregular(Exception):
    """The stretches of a record do not repeat in a way that can be copied."""


@dataclass(frozen=True)
class _Axis:
    """A kind of repeated stretch: decoder layers, so many together, or chunks."""

    layers: bool
    together: int = 1

    @property
    def ends(self) -> Ends:
        return LAYERS if self.layers else CHUNKS

    def index(self, event: Event) -> int | None:
        """Return which layer (chunk) an event happened in; None: in none."""
        region = 0 if event[0] == PHASE else event[-1]
        if self.layers:
            return (region - 1) // self.together if region > 0 else None
        return -region - 1 if region < 0 else None

    def region(self, index: int) -> int:
        return layer(index * self.together) if self.layers else chunk(index)


def fewest_layers(layers: int, period: int) -> int:
    """Return how many decoder layers can stand for so many of which each `period` repeat."""
    return (LAYERS.smallest - 1) * period + (layers % period or period)


def with_layers(
    events: list[Event], traced_count: int, wanted_count: int, period: int = 1
) -> list[Event]:
    """Return the record of `traced_count` decoder layers as one of `wanted_count`.

    Args:
        period: after how many layers what is done with them repeats.

    Raises:
        Irregular: the layers are not alike, or there are fewer than four on either side.
    """
    counts = (-(-count // period) for count in (traced_count, wanted_count))
    return _Resizing(events, _Axis(layers=True, together=period), *counts).events()


def with_chunks(events: list[Event], traced_count: int, wanted_count: int) -> list[Event]:
    """Return the record of a loss in `traced_count` chunks as one in `wanted_count`.

    The last one counts as full.
    """
    return _Resizing(events, _Axis(layers=False), traced_count, wanted_count).events()


class _Resizing:
    def __init__(
        self, events: list[Event], axis: _Axis, traced_count: int, wanted_count: int
    ) -> None:
        self._unchanged = traced_count == wanted_count and (axis.layers or traced_count == 0)
        self._source, self._axis, self._traced_count, self._wanted_count = (
            events,
            axis,
            traced_count,
            wanted_count,
        )
        if not self._unchanged and min(traced_count, wanted_count) < axis.ends.smallest:
            raise Irregular(f"{traced_count} stretches cannot stand for {wanted_count}")
        self._ends, self._middle = axis.ends, axis.ends.first
        self._runs = _runs(events, axis)
        self._home: dict[int, tuple[int, _Slot]] = {}
        self._by_slot: dict[tuple[int, _Slot], int] = {}
        self._find_homes()
        self._repeated = self._repeated_references()
        self._sources = [self._source_of(target) for target in range(wanted_count)]
        self._new: dict[tuple[int, int], int] = {}
        self._first_new = 1 + max((e[1] for e in events if e[0] != PHASE), default=0)
        self._out: list[Event] = []

    def events(self) -> list[Event]:
        """Return the resized record; ids of what is in no stretch stay."""
        if self._unchanged:
            return self._source
        previous: int | None = None
        for number, (index, run) in enumerate(self._runs):
            if index is None:
                self._emit_outside(run)
                continue
            targets = list(self._targets(index))
            if index == self._middle and self._descending(number, previous):
                targets.reverse()
            singles = [self._is_single(event, index) for event in run]
            copied = [event for event, single in zip(run, singles, strict=True) if not single]
            self._emit_run(run, singles, index, targets[0] if targets else None)
            for target in targets[1:]:
                self._emit(copied, index, target)
            previous = index
        self._check_frees()
        return self._out

    def _check_frees(self) -> None:
        """Raise Irregular unless each copy frees once what the source frees."""
        freed = Counter(event[1] for event in self._out if event[0] == FREE)
        if any(times > 1 for times in freed.values()):
            raise Irregular("a copy would be freed twice")
        mortal = {event[1] for event in self._source if event[0] == FREE}
        if any(key in mortal and new not in freed for (key, _), new in self._new.items()):
            raise Irregular("a copy would never be freed")

    def _find_homes(self) -> None:
        """Note the stretch of each storage, and its slot, which counterparts in other stretches
        share.

        What only one stretch makes must not shift the others' slots: the last chunk ends with the
        loss, and its backward is the only one that adds to no gradient.
        """
        phase, met = 0, Counter[int]()
        for index, run in self._runs:
            if index is None:
                phases = sum(event[0] == PHASE for event in run)
                if phases:
                    phase, met = phase + phases, Counter()
                continue
            allocations = [event for event in run if event[0] == ALLOCATE]
            met[index] += bool(allocations)
            times = Counter[str]()
            for event in allocations:
                times[event[4]] += 1
                slot = (phase, met[index], event[4], times[event[4]])
                self._home[event[1]] = (index, slot)
                self._by_slot[index, slot] = event[1]

    def _source_of(self, target: int) -> int:
        if target < self._ends.first:
            return target
        if target >= self._wanted_count - self._ends.last:
            return self._traced_count - (self._wanted_count - target)
        return self._middle

    def _targets(self, index: int) -> range:
        if index < self._ends.first:
            return range(index, index + 1)
        if index >= self._traced_count - self._ends.last:
            target = self._wanted_count - (self._traced_count - index)
            return range(target, target + 1)
        if index == self._middle:
            return range(self._middle, self._wanted_count - self._ends.last)
        return range(0)

    def _descending(self, number: int, previous: int | None) -> bool:
        if previous is not None and previous != self._middle:
            return previous > self._middle
        later = (
            index for index, _ in self._runs[number + 1 :] if index not in (None, self._middle)
        )
        following = next(later, None)
        return following is not None and following < self._middle

    def _repeated_references(self) -> set[tuple[str, int, _Slot]]:
        """Return what the middle stretch does to storages of others: how far away, and which."""
        return {
            (event[0], self._middle - self._home[event[1]][0], self._home[event[1]][1])
            for index, run in self._runs
            if index == self._middle
            for event in run
            if event[0] != ALLOCATE and event[1] in self._home
        }

    def _is_single(self, event: Event, index: int) -> bool:
        """True if no copy has it: it lets go of a loop's list, or of what was made outside."""
        if event[0] == ALLOCATE:
            return False
        if event[1] not in self._home:
            return True
        home, slot = self._home[event[1]]
        elsewhere = index not in (home, self._middle)
        return elsewhere and (event[0], index - home, slot) not in self._repeated

    def _id(self, key: int, target: int) -> int:
        new = self._new.get((key, target))
        if new is None:
            new = self._new[key, target] = self._first_new + len(self._new)
        return new

    def _emit_run(
        self, run: list[Event], singles: list[bool], index: int, target: int | None
    ) -> None:
        """Emit the first copy of a run, with the events that no other copy has."""
        if target is None:
            return
        for single, events in groupby(zip(singles, run, strict=True), key=lambda pair: pair[0]):
            part = [event for _, event in events]
            if single:
                self._emit_outside(part, self._axis.region(target))
            else:
                self._emit(part, index, target)

    def _emit(self, run: list[Event], index: int, target: int) -> None:
        """Emit the events of a run of stretch `index` as those of stretch `target`."""
        out, region = self._out, self._axis.region(target)
        homes, sources, new_ids = self._home, self._sources, self._new
        shift, count, first_new = target - index, self._wanted_count, self._first_new
        for event in run:  # a loop over most of a record: what it calls would take half of its time
            kind, key = event[0], event[1]
            home, slot = homes[key]
            new_home = home + shift
            if not 0 <= new_home < count:
                continue
            source = sources[new_home]
            if source != home:
                key = self._by_slot.get((source, slot), -1)
                if key < 0:
                    raise Irregular(f"stretch {source} does not repeat stretch {home}")
            new = new_ids.get((key, new_home))
            if new is None:
                new = new_ids[key, new_home] = first_new + len(new_ids)
            if kind == ALLOCATE:
                size = self._size(event, index)
                out.append((ALLOCATE, new, size, event[3], event[4], region))
            elif kind == MOVE:
                out.append((MOVE, new, event[2], region))
            else:
                out.append((kind, new, region))

    def _size(self, event: Event, index: int) -> int:
        """Return the bytes of an allocation; the last chunk, which may be a part, counts as a full
        one."""
        if self._axis.layers or index != self._traced_count - 1:
            return int(event[2])
        analog = self._by_slot.get((self._middle, self._home[event[1]][1]))
        if analog is None:
            return int(event[2])
        return max(int(event[2]), self._sizes()[analog])

    def _sizes(self) -> dict[int, int]:
        if not hasattr(self, "_size_of"):
            self._size_of = {e[1]: int(e[2]) for e in self._source if e[0] == ALLOCATE}
        return self._size_of

    def _emit_outside(self, run: list[Event], region: int | None = None) -> None:
        for event in run:
            if event[0] == PHASE:
                self._out.append(event)
                continue
            home = self._home.get(event[1])
            if home is None:
                self._out.append(event)
                continue
            for target in self._targets(home[0]):
                new_region = event[-1] if region is None else region
                self._out.append((event[0], self._id(event[1], target), *event[2:-1], new_region))


def _runs(events: list[Event], axis: _Axis) -> list[tuple[int | None, list[Event]]]:
    """Return neighbouring events of the same stretch together.

    What is freed between two stretches is told by where it was made. It belongs to the one before:
    a layer's input dies when the layer has been left.
    """
    runs: list[tuple[int | None, list[Event]]] = []
    allocates = False
    for event in events:
        index = axis.index(event)
        freed_between = allocates and event[0] == FREE and index is not None
        if not freed_between and (not runs or runs[-1][0] != index):
            runs.append((index, []))
            allocates = False
        runs[-1][1].append(event)
        allocates = allocates or (event[0] == ALLOCATE and index is not None)
    return runs
