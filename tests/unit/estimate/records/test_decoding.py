"""Generation of few tokens continued to many, on a toy that makes and drops what a cache does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.records.decoding import MOST_PASSES, TOKENS, with_all_tokens
from autotune.estimate.records.events import ALLOCATE, FREE, PHASE, layer, live_bytes
from autotune.estimate.records.layers import Irregular


class Toy:
    """Records one or more generations, each with as many tokens as it is told."""

    def __init__(self, layers=2, prompt=100, window=10**9, cached=True):
        self.events, self._next = [], 0
        self._layers, self._prompt = layers, prompt
        self._window, self._cached = window, cached

    def _make(self, size, name="cat", region=0):
        self._next += 1
        self.events.append((ALLOCATE, self._next, size, "activations", name, region))
        return self._next

    def _drop(self, key):
        self.events.append((FREE, key, 0))

    def _mark(self, name):
        self.events.append((PHASE, name, 0))

    def generate(self, tokens):
        self._mark("generation")
        caches = [self._make(8 * self._prompt) for _ in range(self._layers)]
        ids = self._make(self._prompt)
        for n in range(1, tokens):
            self._mark("decode")
            for index, old in enumerate(caches):
                cached_tokens = self._prompt + n
                slides = index == 0
                size = 8 * (min(cached_tokens, self._window) if slides else cached_tokens)
                caches[index] = self._make(size, "cat", layer(index))
                self._drop(old)
                if not self._cached:
                    self._drop(self._make(4 * cached_tokens**2, "softmax", layer(index)))
                    self._drop(self._make(16 * (cached_tokens // 8), "padded", layer(index)))
            scores = self._make(5000, "softmax")
            longer = self._make(self._prompt + n)
            self._drop(ids)
            self._drop(scores)
            ids = longer
            if n < tokens - 1:
                self._drop(self._make(3, "mask of the next"))
        self._drop(self._make(77, "after"))
        for key in (*caches, ids):
            self._drop(key)
        self._mark("scoring")
        self._drop(self._make(9000, "forward"))
        return self


def canonical(events):
    """Storages numbered in the order in which they are made."""
    number = {}
    out = []
    for event in events:
        if event[0] == PHASE:
            out.append(event)
            continue
        if event[0] == ALLOCATE:
            number[event[1]] = len(number)
        out.append((event[0], number[event[1]], *event[2:]))
    return out


@given(st.integers(TOKENS, TOKENS + MOST_PASSES), st.integers(1, 3), st.integers(1, 2))
def test_few_passes_become_exactly_the_record_of_many(length, layers, rounds):
    short_run, long_run = Toy(layers), Toy(layers)
    for _ in range(rounds):
        short_run.generate(TOKENS)
        long_run.generate(length)
    assert canonical(with_all_tokens(short_run.events, TOKENS, length)) == canonical(
        long_run.events
    )


@pytest.mark.parametrize("length", [100, 1000])
def test_of_very_many_passes_some_are_put_in_and_the_peaks_stay(length):
    continued = with_all_tokens(Toy().generate(TOKENS).events, TOKENS, length)
    full = Toy().generate(length).events
    assert live_bytes(continued) == live_bytes(full)
    assert len(continued) < len(full)
    freed = [event[1] for event in continued if event[0] == FREE]
    allocated = [event[1] for event in continued if event[0] == ALLOCATE]
    assert sorted(freed) == sorted(allocated) and len(set(freed)) == len(freed)


@given(st.integers(TOKENS, TOKENS + MOST_PASSES), st.integers(95, 150), st.integers(1, 2))
def test_what_slides_grows_until_its_window_is_full(length, window, rounds):
    short_run, long_run = Toy(window=window), Toy(window=window)
    for _ in range(rounds):
        short_run.generate(TOKENS)
        long_run.generate(length)
    continued = with_all_tokens(short_run.events, TOKENS, length, prompt=100, windows=[window, 0])
    assert canonical(continued) == canonical(long_run.events)


def test_without_a_cache_the_square_of_the_length_grows_as_a_square():
    short_run, long_run = Toy(cached=False).generate(TOKENS), Toy(cached=False).generate(200)
    continued = with_all_tokens(short_run.events, TOKENS, 200)
    assert live_bytes(continued).phases["decode"] == live_bytes(long_run.events).phases["decode"]
    padded = [event[2] for event in continued if event[0] == ALLOCATE and event[4] == "padded"]
    assert max(padded) <= 16 * (300 // 8) * 8  # uneven steps are no square


def test_what_is_whole_stays():
    events = Toy().generate(3).events
    assert with_all_tokens(events, 3, 3) == events


def test_too_few_or_uneven_passes_are_refused():
    with pytest.raises(Irregular, match="cannot stand for"):
        with_all_tokens(Toy().generate(3).events, 3, 10)
    with pytest.raises(Irregular, match="not have as many passes"):
        with_all_tokens(Toy().generate(TOKENS + 1).events, TOKENS, 10)
    odd = Toy().generate(TOKENS).events
    last_mark = max(n for n, e in enumerate(odd) if e[0] == PHASE and e[1] == "decode")
    first = next(n for n in range(last_mark, len(odd)) if odd[n][0] == ALLOCATE)
    odd[first] = (*odd[first][:4], "other", *odd[first][5:])
    with pytest.raises(Irregular, match="last pass"):
        with_all_tokens(odd, TOKENS, 10)
