"""What training on several devices adds to each."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.formula.devices import (
    BROADCAST,
    BUCKET,
    FIRST_BUCKET,
    broadcast,
    buckets,
    with_buckets,
)
from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    FREE,
    GRADIENTS,
    MOVE,
    PHASE,
    TEMPORARIES,
    WEIGHTS,
    live_bytes,
)

MIB = 1 << 20


def test_the_first_bucket_closes_early_and_a_large_gradient_has_its_own() -> None:
    sizes = [MIB, 10 * MIB, 10 * MIB, 10 * MIB, 100 * MIB, MIB]
    assert buckets(sizes) == [MIB, 30 * MIB, 100 * MIB, MIB]
    assert buckets([]) == []


@given(st.lists(st.integers(1, 60 * MIB)))
def test_buckets_hold_every_gradient_once(sizes: list[int]) -> None:
    gathered = buckets(sizes)
    assert sum(gathered) == sum(sizes)
    assert all(size >= (BUCKET if n else FIRST_BUCKET) for n, size in enumerate(gathered[:-1]))


def test_weights_are_sent_two_parts_at_a_time_and_nothing_of_it_stays() -> None:
    sizes = [BROADCAST, *[100 * MIB] * 9, MIB, MIB]  # the first fills its part alone: no copy of it
    events = broadcast(sizes)
    assert [e[2] for e in events if e[0] == ALLOCATE] == [300 * MIB] * 3 + [2 * MIB]
    use = live_bytes(events)
    assert use.peak_bytes == 600 * MIB
    record = [(PHASE, "data", 0), (ALLOCATE, 1, MIB, TEMPORARIES, "mm", 0)]
    assert live_bytes([*events, *record]).phases["data"] == MIB
    assert broadcast([MIB]) == []


def step(first: int) -> list[tuple[object, ...]]:
    return [
        (PHASE, "data", 0),
        (PHASE, "micro-step", 0),
        (ALLOCATE, first, 3 * MIB, TEMPORARIES, "mm", 0),
        (MOVE, first, GRADIENTS, 0),
        (FREE, first, 0),
    ]


def test_buckets_are_there_from_the_first_batch_on_and_counted_once() -> None:
    events = [(ALLOCATE, 1, 5 * MIB, WEIGHTS, "init", 0), *step(2), *step(3)]
    use = live_bytes(with_buckets(events))
    assert use.parts == {WEIGHTS: 5 * MIB, TEMPORARIES: 3 * MIB, COMMUNICATION: 3 * MIB}
    assert use.phases[""] == 8 * MIB
