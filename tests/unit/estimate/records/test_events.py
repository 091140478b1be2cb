"""What live storages add up to, over made-up events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.records import events as record
from autotune.estimate.records.events import (
    ALLOCATE,
    FREE,
    MOVE,
    PHASE,
    Work,
    live_bytes,
)
from tests.unit.toy_program import allocations

EVENTS = [
    (ALLOCATE, 0, 1000, record.WEIGHTS, "init", 0),
    (PHASE, "micro-step", 0),
    (ALLOCATE, 1, 300, record.ACTIVATIONS, "mm", record.layer(0)),
    (ALLOCATE, 2, 50, record.TEMPORARIES, "mul", record.layer(0)),
    (FREE, 2, record.layer(0)),
    (ALLOCATE, 3, 200, record.LOGITS, "mm", record.chunk(0)),
    (PHASE, "step", 0),
    (FREE, 1, 0),
    (MOVE, 3, record.GRADIENTS, 0),
    (ALLOCATE, 4, 250, record.OPTIMIZER, "zeros_like", 0),
]


@st.composite
def traces(draw):
    """Events that a tracer could have recorded."""
    events, live = [], []
    for key in range(draw(st.integers(0, 30))):
        size, part = draw(st.integers(0, 5000)), draw(st.sampled_from(record.PARTS))
        events.append((ALLOCATE, key, size, part, f"op{key}", 0))
        live.append(key)
        for what in draw(st.lists(st.sampled_from([FREE, MOVE, PHASE]), max_size=3)):
            if what == PHASE:
                events.append((PHASE, draw(st.sampled_from(["micro-step", "clip", "step"])), 0))
            elif live:
                storage = draw(st.sampled_from(live))
                if what == MOVE:
                    events.append((MOVE, storage, draw(st.sampled_from(record.PARTS)), 0))
                else:
                    events.append((FREE, storage, 0))
                    live.remove(storage)
    return events


def test_the_peak_tells_what_was_live_then_and_what_was_running():
    use = live_bytes(EVENTS)
    assert use.peak_bytes == 1500
    assert (use.operator, use.phase) == ("mm", "micro-step")
    assert use.parts == {record.WEIGHTS: 1000, record.ACTIVATIONS: 300, record.LOGITS: 200}
    assert use.phases == {"": 1000, "micro-step": 1500, "step": 1450}


def test_a_storage_counts_in_the_part_that_it_was_moved_to():
    use = live_bytes([*EVENTS, (ALLOCATE, 5, 100, record.TEMPORARIES, "add", 0)])
    assert use.parts == {
        record.WEIGHTS: 1000,
        record.GRADIENTS: 200,
        record.OPTIMIZER: 250,
        record.TEMPORARIES: 100,
    }


def test_of_two_peaks_of_one_height_the_first_is_told():
    two_peaks = [make for key in (0, 1) for make in ((ALLOCATE, key, 8, "logits", f"op{key}", 0),)]
    use = live_bytes([two_peaks[0], (FREE, 0, 0), two_peaks[1]])
    assert (use.peak_bytes, use.operator) == (8, "op0")


def test_nothing_traced_is_nothing_used():
    use = live_bytes([])
    assert (use.peak_bytes, use.parts, use.operator, use.phase) == (0, {}, "", "")


@pytest.mark.parametrize(
    ("size", "rounded"), [(0, 0), (1, 512), (512, 512), (513, 1024), (1025, 1536)]
)
def test_storages_are_rounded_up_to_the_granule_one_by_one(size, rounded):
    events = [(ALLOCATE, key, size, record.LOGITS, "op", 0) for key in range(3)]
    assert live_bytes(events, granule=512).peak_bytes == 3 * rounded


@given(traces(), st.sampled_from([1, 512]))
def test_parts_always_add_up_to_the_peak(events, granule):
    use = live_bytes(events, granule)
    assert sum(use.parts.values()) == use.peak_bytes
    assert all(size > 0 for size in use.parts.values())
    assert set(use.parts) <= set(record.PARTS)


@given(traces())
def test_the_peak_is_the_highest_of_the_phases(events):
    use = live_bytes(events)
    assert use.peak_bytes == max(use.phases.values(), default=0)
    assert not use.peak_bytes or use.phases[use.phase] == use.peak_bytes


@given(traces())
def test_moves_and_phases_change_no_peak(events):
    plain = [event for event in events if event[0] in (ALLOCATE, FREE)]
    assert live_bytes(plain).peak_bytes == live_bytes(events).peak_bytes


@given(traces())
def test_rounding_adds_less_than_a_granule_for_each_storage(events):
    exact, rounded = live_bytes(events).peak_bytes, live_bytes(events, 512).peak_bytes
    allocations = sum(event[0] == ALLOCATE for event in events)
    assert exact <= rounded <= exact + 511 * allocations


@given(traces())
def test_an_allocator_that_replays_a_trace_meets_the_same_peak(events):
    sizes, peak = {}, 0
    for key, size in allocations(events):
        if size < 0:
            del sizes[key]
        else:
            sizes[key] = size
            peak = max(peak, sum(sizes.values()))
    assert peak == live_bytes(events).peak_bytes


@given(st.integers(0, 500), st.integers(0, 500))
def test_regions_of_layers_and_chunks_are_never_mixed_up(index, other_index):
    assert record.layer(index) != record.chunk(other_index)
    assert record.NOWHERE not in (record.layer(index), record.chunk(other_index))
    assert (record.layer(index) == record.layer(other_index)) == (index == other_index)
    assert (record.chunk(index) == record.chunk(other_index)) == (index == other_index)


def test_the_signature_of_work_is_the_same_for_every_shape():
    def matmul(tokens, region=3):
        return Work(
            operator="aten::mm",
            kind="matmul",
            dtype="bfloat16",
            dims=(1, tokens, 64, 128),
            flops=2 * tokens * 64 * 128,
            moved_bytes=tokens * 384,
            region=region,
        )

    assert matmul(10).signature == matmul(7000).signature
    assert matmul(10).signature != matmul(10, region=4).signature
