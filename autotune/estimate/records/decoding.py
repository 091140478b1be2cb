"""A record in which few tokens were generated as one in which all were. Pure.

Tokens are generated one by one, and each pass but the first is like the one before: the caches are
one token longer. The second to last whole pass that was traced is continued: what grew between it
and the one before it grows on (in layers with a sliding window until that is full; without a cache
the square of the length grows as a square), and what it let go of the pass before, each copy lets
go of the copy before. Of many passes only some are put in, evenly spread, the last among them: the
bytes that are live at most do not change by that; what a caching allocator reserves may, a little.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.estimate.records.events import ALLOCATE, FREE, PHASE, SCRATCH, Event, layer
from autotune.estimate.records.layers import Irregular

GENERATION, DECODE = "generation", "decode"
TOKENS = 6
"""Tokens of a generation that are traced: prompt, one that differs from the others, two, two
ends."""
MOST_PASSES = 32
LEAST_EQUAL = 0.75
"""The least share of the last pass that equals the others."""


def with_all_tokens(
    events: Sequence[Event],
    tokens: int,
    length: int,
    *,
    prompt: int = 0,
    windows: Sequence[int] = (),
) -> list[Event]:
    """Return the record of generations of `tokens` tokens as one of generations of `length`.

    Args:
        prompt: tokens of the longest prompt.
        windows: of each layer how many tokens its cache keeps at most; 0: all.

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
        generation = _ContinuedGeneration(
            [_Pass.of(events[slice(*bounds)]) for bounds in passes[-4:]], length - tokens, fresh
        )
        cached_tokens = prompt + tokens - 2  # tokens whose keys are cached after the model pass
        generation.fill({n: size - cached_tokens for n, size in enumerate(windows) if size})
        last = passes[-1]
        out += [generation.as_continued(event) for event in events[start : last[0]]]
        out += generation.copies()
        out += generation.ending()
        start, fresh = last[1], generation.fresh
        events = [*events[:start], *map(generation.as_continued, events[start:])]
    return out + list(events[start:])


def without_generations(events: Sequence[Event], *, asleep: bool = False) -> list[Event]:
    """Return the record without what only generation held, as where vLLM generates.

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
    """Return the stretches (from, to) of the passes after the first, by generation."""
    marks = [n for n, event in enumerate(events) if event[0] == PHASE]
    ends = [*marks[1:], len(events)]
    passes_found = [(a, b) for a, b in zip(marks, ends, strict=True) if events[a][1] == DECODE]
    if len(passes_found) % passes:
        raise Irregular("a generation does not have as many passes as were asked for")
    return [passes_found[n : n + passes] for n in range(0, len(passes_found), passes)]


@dataclass(frozen=True)
class _Pass:
    events: Sequence[Event]
    allocations: tuple[Event, ...]
    place: dict[int, int]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "_Pass":
        allocations = tuple(event for event in events if event[0] == ALLOCATE)
        return cls(events, allocations, {event[1]: n for n, event in enumerate(allocations)})


@dataclass(frozen=True)
class _Growth:
    """Bytes that a storage grows by from one pass to the next."""

    slope: int
    curve: int = 0
    """Bytes that each step is longer than the one before."""
    room: float = math.inf
    """Passes after which a sliding window is full, counted from the model pass."""

    @classmethod
    def of(cls, event: Event, *sizes: int) -> "_Growth":
        """Return the growth of a storage that was so large in the passes before; `event` is the
        last."""
        # What kernels take inside is measured shape by shape, and goes up and down.
        if event[4].endswith(SCRATCH):
            return cls(0)
        slope, curve = sizes[-1] - sizes[-2], 0
        if len(sizes) > 2 and sizes[-3] < sizes[-2] < sizes[-1]:
            # Roots in even steps: a square of the length. (What is rounded up grows unevenly too.)
            first, second, third_root = map(math.sqrt, sizes[-3:])
            if math.isclose(first + third_root, 2 * second, rel_tol=1e-9):
                curve = slope - (sizes[-2] - sizes[-3])
        return cls(slope, curve)

    def after(self, passes: int, behind: int = 0) -> int:
        """Return the bytes that n passes add which begin `behind` passes after the model pass:

        n x (slope + behind x curve) + curve x n (n + 1) / 2
        """
        n = int(max(min(passes, self.room - behind), 0))
        return n * (self.slope + behind * self.curve) + self.curve * n * (n + 1) // 2


class _ContinuedGeneration:
    """One generation, its model pass, the second to last, continued."""

    def __init__(self, passes: Sequence[_Pass], missing: int, fresh: int) -> None:
        self._previous_pass, self._model, self._last = passes[-3:]
        self._missing, self.fresh = missing, fresh
        operators = [[event[4] for event in one_pass.allocations] for one_pass in passes]
        model, last = operators[-2:]
        if operators[-3] != model or not model:
            raise Irregular("the passes of a generation are not alike")
        pairs_of_names = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(model, last, strict=False)
        )
        self._equal_count = sum(1 for _ in pairs_of_names)
        if self._equal_count < LEAST_EQUAL * len(model):  # it does not prepare another one
            raise Irregular("the last pass of a generation is not like the others")
        equal_passes = [
            one_pass.allocations for one_pass, names in zip(passes[:-1], operators, strict=False)
        ]
        if operators[0] != model:
            equal_passes = equal_passes[-2:]
        self._growth = [
            _Growth.of(events[-1], *(event[2] for event in events))
            for events in zip(*equal_passes, strict=True)
        ]
        # What a pass keeps, as the scores of its tokens, is made at once for those not traced.
        later_events = (*self._model.events, *self._last.events)
        freed = {event[1] for event in later_events if event[0] == FREE}
        self._kept_ids = {event[1] for event in self._model.allocations if event[1] not in freed}
        self._previous = [event[1] for event in self._model.allocations]
        self._final: dict[int, int] = {}

    def fill(self, rooms: dict[int, int]) -> None:
        """Let nothing in these layers grow any more after so many passes."""
        regions = {layer(number): room for number, room in rooms.items()}
        for place, event in enumerate(self._model.allocations):
            room = regions.get(event[-1], math.inf)
            self._growth[place] = replace(self._growth[place], room=room)

    def copies(self) -> list[Event]:
        """Return the passes that were not traced, or some of them."""
        count = min(self._missing, MOST_PASSES)
        out: list[Event] = []
        for n in range(1, count + 1):
            out += self._copy(round(n * self._missing / count))
        self._final = dict(
            zip((event[1] for event in self._model.allocations), self._previous, strict=True)
        )
        return out

    def _copy(self, further: int) -> list[Event]:
        numbered = enumerate(self._model.allocations, self.fresh)
        ids = [event[1] if event[1] in self._kept_ids else fresh for fresh, event in numbered]
        self.fresh += len(ids)
        out: list[Event] = []
        for event in self._model.events:
            if event[0] == PHASE:
                out.append(event)
            elif event[1] in self._kept_ids:
                continue
            elif event[1] in self._model.place:
                place = self._model.place[event[1]]
                renamed = (event[0], ids[place], *event[2:])
                if event[0] == ALLOCATE:
                    size = event[2] + self._growth[place].after(further)
                    renamed = (*renamed[:2], size, *renamed[3:])
                out.append(renamed)
            elif event[1] in self._previous_pass.place:
                key = self._previous[self._previous_pass.place[event[1]]]
                out.append((event[0], key, *event[2:]))
        self._previous = ids
        return out

    def ending(self) -> list[Event]:
        """Return the last pass, as long as it really is."""
        out = []
        for event in self._last.events:
            place = self._last.place.get(event[1]) if event[0] == ALLOCATE else None
            if place is not None and place < self._equal_count:
                size = event[2] + self._growth[place].after(self._missing, behind=1)
                out.append((*event[:2], size, *event[3:]))
            else:
                out.append(self.as_continued(event))
        return out

    def as_continued(self, event: Event) -> Event:
        """Return an event that was traced: what the model pass left lives on as its last copy's."""
        if event[0] == PHASE or event[0] == ALLOCATE:
            return event
        return (event[0], self._final.get(event[1], event[1]), *event[2:])
