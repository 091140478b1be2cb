"""A record in which few tokens were generated as one in which all were. Pure.

Tokens are generated one by one, and each pass but the first is like the one before: the caches are
one token longer. The second to last whole pass that was traced is continued: what grew between it
and the one before it grows on, and what it let go of the pass before, each copy lets go of the copy
before. Of many passes only some are put in, evenly spread, the last among them: the bytes that are
live at most do not change by that; what a caching allocator reserves may, a little.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.estimate.record import ALLOCATE, FREE, PHASE, SCRATCH, Event
from autotune.estimate.resizing import Irregular

GENERATION, DECODE = "generation", "decode"
TOKENS = 6
"""Enough to be traced of a generation: prompt, one that is not like the others, two, two ends."""
MOST_PASSES = 32
MOSTLY = 0.75
"""The part of the last pass that is like that of the others."""


def with_all_tokens(events: Sequence[Event], tokens: int, length: int) -> list[Event]:
    """The record of generations of `tokens` tokens as one of generations of `length`.

    Raises:
        Irregular: the passes are not alike.
    """
    if tokens >= length:
        return list(events)
    if tokens < TOKENS:
        raise Irregular(f"{tokens} tokens cannot stand for {length}")
    out: list[Event] = []
    fresh = 1 + max((e[1] for e in events if e[0] != PHASE), default=0)
    start = 0
    for passes in _generations(events, tokens - 1):
        before, model, last = passes[-3], passes[-2], passes[-1]
        continued = _Continued(events, before, model, last, length - tokens, fresh)
        out += [continued.kept(event) for event in events[start : last[0]]]
        out += continued.copies()
        out += continued.ending()
        start, fresh = last[1], continued.fresh
        events = [*events[:start], *map(continued.kept, events[start:])]
    return out + list(events[start:])


def without_generations(events: Sequence[Event], *, asleep: bool = False) -> list[Event]:
    """The record as it is where something else generates: without what only generation held.

    Args:
        asleep: whether vLLM sleeps in between: then the trainer gives the allocator's cache back
            to wake it.
    """
    inside, born, passing = False, set(), set()
    for event in events:
        if event[0] == PHASE:
            inside = event[1] in (GENERATION, DECODE)
        elif inside and event[0] == ALLOCATE:
            born.add(event[1])
        elif inside and event[0] == FREE and (event[1] in born or (event[1] < 0 and not asleep)):
            passing.add(event[1])
    return [event for event in events if event[0] == PHASE or event[1] not in passing]


def _generations(events: Sequence[Event], passes: int) -> list[list[tuple[int, int]]]:
    """Of each generation the stretches (from, to) of its passes after the first."""
    marks = [n for n, event in enumerate(events) if event[0] == PHASE]
    ends = [*marks[1:], len(events)]
    found = [(a, b) for a, b in zip(marks, ends, strict=True) if events[a][1] == DECODE]
    if len(found) % passes:
        raise Irregular("a generation has another number of passes than was asked for")
    return [found[n : n + passes] for n in range(0, len(found), passes)]


@dataclass(frozen=True)
class _Pass:
    events: Sequence[Event]
    made: tuple[Event, ...]
    place: dict[int, int]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "_Pass":
        made = tuple(event for event in events if event[0] == ALLOCATE)
        return cls(events, made, {event[1]: n for n, event in enumerate(made)})


class _Continued:
    """One generation, its model pass continued."""

    def __init__(
        self,
        events: Sequence[Event],
        before: tuple[int, int],
        model: tuple[int, int],
        last: tuple[int, int],
        missing: int,
        fresh: int,
    ) -> None:
        self._before, self._model, self._last = (
            _Pass.of(events[slice(*one)]) for one in (before, model, last)
        )
        self._missing, self.fresh = missing, fresh
        operators = [[event[4] for event in one.made] for one in (self._before, self._model)]
        if operators[0] != operators[1] or not self._model.made:
            raise Irregular("the passes of a generation are not alike")
        last_ones = (event[4] for event in self._last.made)
        pairs_of_names = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(operators[1], last_ones, strict=False)
        )
        self._alike = sum(1 for _ in pairs_of_names)
        if self._alike < MOSTLY * len(operators[1]):  # it does not prepare another one
            raise Irregular("the last pass of a generation is not like the others")
        pairs = zip(self._before.made, self._model.made, strict=True)
        # What kernels take inside is measured shape by shape, and goes up and down.
        self._growth = [0 if new[4].endswith(SCRATCH) else new[2] - old[2] for old, new in pairs]
        # What a pass keeps, as the scores of its tokens, is made at once for those not traced.
        ended = (*self._model.events, *self._last.events)
        freed = {event[1] for event in ended if event[0] == FREE}
        self._kept = {event[1] for event in self._model.made if event[1] not in freed}
        self._previous = [event[1] for event in self._model.made]
        self._final: dict[int, int] = {}

    def copies(self) -> list[Event]:
        """The passes that were not traced, or some of them."""
        count = min(self._missing, MOST_PASSES)
        out: list[Event] = []
        for n in range(1, count + 1):
            out += self._copy(round(n * self._missing / count))
        self._final = dict(
            zip((event[1] for event in self._model.made), self._previous, strict=True)
        )
        return out

    def _copy(self, further: int) -> list[Event]:
        made = enumerate(self._model.made, self.fresh)
        own = [event[1] if event[1] in self._kept else fresh for fresh, event in made]
        self.fresh += len(own)
        out: list[Event] = []
        for event in self._model.events:
            if event[0] == PHASE:
                out.append(event)
            elif event[1] in self._kept:
                continue
            elif event[1] in self._model.place:
                place = self._model.place[event[1]]
                renamed = (event[0], own[place], *event[2:])
                if event[0] == ALLOCATE:
                    size = event[2] + further * self._growth[place]
                    renamed = (*renamed[:2], size, *renamed[3:])
                out.append(renamed)
            elif event[1] in self._before.place:
                key = self._previous[self._before.place[event[1]]]
                out.append((event[0], key, *event[2:]))
        self._previous = own
        return out

    def ending(self) -> list[Event]:
        """The last pass, as long as it really is."""
        out = []
        for event in self._last.events:
            place = self._last.place.get(event[1]) if event[0] == ALLOCATE else None
            if place is not None and place < self._alike:
                size = event[2] + self._missing * self._growth[place]
                out.append((*event[:2], size, *event[3:]))
            else:
                out.append(self.kept(event))
        return out

    def kept(self, event: Event) -> Event:
        """An event that was traced: what the model pass left lives on as its last copy's."""
        if event[0] == PHASE or event[0] == ALLOCATE:
            return event
        return (event[0], self._final.get(event[1], event[1]), *event[2:])
