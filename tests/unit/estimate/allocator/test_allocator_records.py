"""What the caching allocator must keep to whatever is asked of it, and long records."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.allocator.pools import LARGE_SEGMENT
from autotune.estimate.allocator.replay import (
    CachingAllocator,
    OutOfMemory,
    ReplayedRecord,
    replayed,
)
from autotune.estimate.records.events import ACTIVATIONS, ALLOCATE, FREE, NOWHERE
from tests.unit.estimate.allocator.snapshots import snapshot

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 70 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 40 * MIB]),
)
RECORDS = st.lists(st.one_of(SIZES, st.floats(0, 0.999)), max_size=60)
"""An integer allocates that much; a fraction frees the allocation at that place among the live."""
LIMITS = st.one_of(st.none(), st.integers(2 * MIB, 300 * MIB))


def allocator(limit=None, expandable=False):
    return CachingAllocator(limit, expandable_segments=expandable)


def play(caching, record, after_each=lambda error: None):
    """Plays a record and returns the keys that live; `after_each` gets an event's error or None."""
    live = []
    for key, event in enumerate(record):
        error = None
        if isinstance(event, float):
            if live:
                caching.free(live.pop(int(event * len(live))))
        else:
            try:
                caching.allocate(key, event)
                live.append(key)
            except OutOfMemory as raised:
                error = raised
        after_each(error)
    return live


def figures(caching):
    return (
        caching.allocated_bytes,
        caching.reserved_bytes,
        caching.peak_allocated_bytes,
        caching.peak_reserved_bytes,
        caching.retries,
    )


@given(RECORDS, LIMITS, st.booleans())
def test_the_figures_agree_with_each_other_and_with_the_limit(record, limit, expandable):
    caching = allocator(limit, expandable)
    errors = []

    def check(error):
        allocated, reserved, peak_allocated, peak_reserved, retries = figures(caching)
        assert 0 <= allocated <= reserved <= peak_reserved
        assert allocated <= peak_allocated <= peak_reserved
        beyond = LARGE_SEGMENT if expandable else 0  # by less than a page
        assert limit is None or peak_reserved <= limit + beyond
        if error is not None:
            errors.append(error)
            assert limit is not None
            assert error.missing_bytes > 0
            assert (error.reserved_bytes, error.allocated_bytes) == (reserved, allocated)
        assert retries >= len(errors)

    play(caching, record, check)


@given(RECORDS, LIMITS, st.booleans())
def test_blocks_cover_their_segments_and_free_neighbours_are_merged(record, limit, expandable):
    caching = allocator(limit, expandable)

    def check(_):
        segments = snapshot(caching)
        ends = {True: 0, False: 0}
        for segment in segments:
            end = segment.address
            assert end >= ends[segment.small]
            for block in segment.blocks:
                assert (block.address, block.size_bytes > 0) == (end, True)
                end += block.size_bytes
            assert end == segment.address + segment.size_bytes
            ends[segment.small] = end
            assert all(block.allocated or two.allocated for block, two in pairwise(segment.blocks))
        blocks = [block for segment in segments for block in segment.blocks]
        in_use = sum(block.size_bytes for block in blocks if block.allocated)
        assert in_use == caching.allocated_bytes
        assert sum(segment.size_bytes for segment in segments) == caching.reserved_bytes

    play(caching, record, check)


@given(RECORDS, LIMITS, st.booleans(), st.randoms(use_true_random=False))
def test_once_all_is_freed_all_can_be_given_back(record, limit, expandable, random):
    limit = limit or 10**12
    caching = allocator(limit, expandable)
    live = play(caching, record)
    random.shuffle(live)
    for key in live:
        caching.free(key)
    assert caching.allocated_bytes == 0
    assert all(len(segment.blocks) == 1 for segment in snapshot(caching))
    with pytest.raises(OutOfMemory) as caught:
        caching.allocate(-1, limit + 1)
    assert (caught.value.reserved_bytes, caching.reserved_bytes) == (0, 0)
    assert snapshot(caching) == []


@given(RECORDS, LIMITS, st.booleans())
def test_the_same_record_gives_the_same_answer(record, limit, expandable):
    first, second = allocator(limit, expandable), allocator(limit, expandable)
    assert play(first, record) == play(second, record)
    assert figures(first) == figures(second)
    assert snapshot(first) == snapshot(second)


@given(RECORDS, st.integers(0, 10 * MIB), st.booleans())
def test_a_limit_that_is_never_reached_changes_nothing(record, room, expandable):
    free = allocator(expandable=expandable)
    play(free, record)
    limited = allocator(free.roomy_limit_bytes + room, expandable)
    play(limited, record)
    assert limited.retries == 0
    assert figures(limited) == figures(free)
    assert snapshot(limited) == snapshot(free)


@given(RECORDS, st.booleans())
def test_one_byte_less_than_a_roomy_limit_is_retried(record, expandable):
    free = allocator(expandable=expandable)
    play(free, record)
    limited = allocator(free.roomy_limit_bytes - 1, expandable)
    play(limited, record)
    assert limited.retries > 0 or free.roomy_limit_bytes == 0


def pseudo_random_record(events):
    """(key, bytes), or (key, None) for a free: the same on every machine, never over 40 live."""
    state, live, record = 12345, [], []
    for key in range(events):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        kind, bits = (state >> 56) % 100, (state >> 8) % 2**48
        if live and (kind < 45 or len(live) == 40):
            record.append((live.pop(bits % len(live)), None))
        else:
            largest = (5000, 2 * MIB, 12 * MIB, 64 * MIB)[kind % 4]
            record.append((key, 1 + bits % largest))
            live.append(key)
    return record


RECORDED = {
    (False, None): (55820800, 740294656, 593342976, 740294656, 0, 0),
    (False, 600): (55820800, 585105408, 546778112, 624951296, 2, 2),
    (False, 300): (56823808, 299892736, 293695488, 314572800, 41, 37),
    (True, None): (55820800, 614465536, 590457344, 614465536, 0, 0),
    (True, 560): (55820800, 572522496, 543892480, 572522496, 1, 1),
    (True, 300): (55820800, 295698432, 284754432, 320864256, 46, 38),
}
"""What torch 2.13's own allocator made of it on a virtual GPU, limited as a probe is
(`set_per_process_memory_fraction`).

By (expandable segments, limit in MiB): allocated, reserved, their peaks, retries, requests refused.
"""


@pytest.mark.parametrize(("expandable", "limit"), RECORDED)
def test_a_long_record_comes_out_as_in_torch(expandable, limit):
    caching = allocator(limit and limit * MIB, expandable)
    lost_keys = set()
    for key, size in pseudo_random_record(3000):
        if size is None:
            if key not in lost_keys:
                caching.free(key)
            continue
        try:
            caching.allocate(key, size)
        except OutOfMemory:
            lost_keys.add(key)
    assert (*figures(caching), len(lost_keys)) == RECORDED[expandable, limit]


def events_of(record):
    """The same record as a trace tells it; of every third part it is emptied of its cache."""
    live, events = [], []
    for key, event in enumerate(record):
        if isinstance(event, float):
            if live:
                events.append([FREE, live.pop(int(event * len(live))), NOWHERE])
        else:
            live.append(key)
            events.append([ALLOCATE, key, event, ACTIVATIONS, "aten::mm", NOWHERE])
        if key % 20 == 19:
            events.append([FREE, -1, NOWHERE])
    return events


@given(RECORDS, st.lists(LIMITS, min_size=1, max_size=4), st.lists(st.booleans(), min_size=1))
def test_one_record_answers_for_every_limit_what_a_replay_for_it_alone_does(
    record, limits, expandable
):
    events = events_of(record)
    whole = ReplayedRecord(events)
    for limit in [*limits, *reversed(limits)]:
        for grows in expandable[:2]:
            alone = replayed(events, limit, expandable_segments=grows)
            assert whole.held_to(limit, expandable_segments=grows) == alone
