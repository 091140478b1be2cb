"""Which replays a variant makes: each once, the second allocator only where it matters, and few of
what does not fit by far."""

import dataclasses

import pytest

from autotune.estimate.allocator.replay import OVERSIZE_SHARE
from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.records.events import ACTIVATIONS, ALLOCATE, FREE, NOWHERE
from autotune.estimate.variants.micro_batches import Worst
from autotune.estimate.variants.offline import ROOMY, PointReplays

MIB = 2**20
USUAL = Point(batching={}, accumulates=False)
GROWING = dataclasses.replace(USUAL, expandable_segments=True)
WORST = Worst(lengths=(10,), labelled=10, flat=False)


def replays(limit_mib: float, points: list[Point], made: list[object]) -> PointReplays:
    """Replays of a record that leaves holes: growing segments need less for it."""
    request = EstimateRequest(
        method="sft",
        config={},
        model_path="",
        model="",
        versions={},
        layers=1,
        cuda={},
        rows="",
        rows_total=1,
        rows_sampled=False,
        points=points,
        limit_bytes=round(limit_mib * MIB),
        cache=None,
        seed=0,
        devices=1,
    )

    def record(point: Point, worst: Worst, padded: bool, first: tuple[float, ...]):
        made.append((point, first))
        sizes = [(number, 30 * MIB) for number in range(4)]
        events = [(ALLOCATE, key, size, ACTIVATIONS, "op", NOWHERE) for key, size in sizes]
        events += [(FREE, key, NOWHERE) for key, _ in sizes]
        return [*events, (ALLOCATE, 9, 100 * MIB, ACTIVATIONS, "op", NOWHERE)]

    return PointReplays(request, record)


def test_a_point_is_replayed_once_for_all_that_share_it() -> None:
    made: list[object] = []
    some = replays(1000, [USUAL], made)
    assert some.of(USUAL, WORST, False, ()) is some.of(USUAL, WORST, False, ())
    some.of(USUAL, WORST, False, (0.5,))
    assert [first for _, first in made] == [(), (0.5,)]


@pytest.mark.parametrize(("limit_mib", "own"), [(220 / ROOMY + 1, False), (220 / ROOMY - 1, True)])
def test_growing_segments_are_replayed_where_fixed_ones_leave_little(limit_mib, own) -> None:
    some = replays(limit_mib, [USUAL, GROWING], [])
    usual, growing = (some.of(point, WORST, False, ()) for point in (USUAL, GROWING))
    assert usual.reserved_bytes == 220 * MIB
    assert growing.reserved_bytes == (120 * MIB if own else 220 * MIB)


def test_growing_segments_that_are_planned_alone_are_replayed() -> None:
    some = replays(10_000, [GROWING], [])
    assert some.of(GROWING, WORST, False, ()).reserved_bytes == 120 * MIB


# The record lives in 120 MiB, for which fixed segments reserve 220.
@pytest.mark.parametrize(
    ("limit_mib", "scaled"), [(100, True), (119 / (1 + OVERSIZE_SHARE), True), (115, False)]
)
def test_what_does_not_fit_by_far_follows_from_a_smaller_micro_batch(limit_mib, scaled) -> None:
    some = replays(limit_mib, [USUAL], [])
    larger = dataclasses.replace(WORST, lengths=(10, 10))
    first, second = (some.of(USUAL, worst, False, ()) for worst in (WORST, larger))
    assert not first.scaled and first.reserved_bytes == 220 * MIB
    assert second.scaled == scaled and second.reserved_bytes == 220 * MIB
    assert second.missing_bytes is not None
