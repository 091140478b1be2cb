"""Which points are not traced because a smaller one is far beyond the limit."""

from dataclasses import asdict, replace

import pytest

from autotune.estimate.protocol import Point, PointReply
from autotune.estimate.variants.rollouts import OVERSIZE_SHARE, TooLarge, is_larger
from autotune.training.rollout_plan import Rollout

LIMIT = 1000
ROLLOUT = Rollout(
    micro_batch=2, accumulation=4, completions=8, group=2, length=16, iterations=1, seed=0
)


def point(accumulates=True, expandable_segments=False, **changes):
    batching = asdict(replace(ROLLOUT, **changes))
    return Point(
        batching=batching, accumulates=accumulates, expandable_segments=expandable_segments
    )


def reply(missing_bytes, **parts):
    return PointReply(
        peak_allocated_bytes=LIMIT,
        peak_reserved_bytes=LIMIT,
        parts=parts,
        operator="aten::mm",
        phase="micro-step",
        oom=True,
        missing_bytes=missing_bytes,
        retries=0,
        phases={},
        sample=[],
        masked=False,
        method="trace",
    )


@pytest.mark.parametrize(
    ("other", "larger"),
    [
        (point(micro_batch=4, accumulation=2), True),
        (point(micro_batch=1, accumulation=8), False),
        (point(chunk=4), False),  # it generates less at once
        (point(micro_batch=4, accumulation=2, chunk=4), False),
        (point(micro_batch=4, accumulation=2, accumulates=False), False),
        (point(micro_batch=4, accumulation=2, length=8), False),
        (point(micro_batch=4, accumulation=2, expandable_segments=True), False),
    ],
)
def test_a_point_is_larger_only_where_it_differs_in_nothing_but_sizes(other, larger):
    assert is_larger(other, point()) is larger


@pytest.mark.parametrize(
    ("live_bytes", "gradients", "skipped"),
    [(LIMIT + 1, 0, True), (LIMIT + 1, 9, False), (LIMIT, 0, False)],
)
def test_where_no_gradients_are_at_the_peak_a_last_micro_step_is_as_large(
    live_bytes, gradients, skipped
):
    found = TooLarge(LIMIT)
    large = replace(reply(LIMIT, gradients=gradients), peak_allocated_bytes=live_bytes)
    found.note(point(), large)
    alone = point(micro_batch=8, accumulation=1, accumulates=False)
    assert (found.smaller_than(alone) is large) is skipped
    assert found.smaller_than(point(micro_batch=1, accumulation=8, accumulates=False)) is None


@pytest.mark.parametrize(
    ("missing", "skipped"),
    [(int(OVERSIZE_SHARE * LIMIT) + 1, True), (int(OVERSIZE_SHARE * LIMIT), False), (None, False)],
)
def test_larger_points_take_the_reply_of_one_that_is_far_beyond_the_limit(missing, skipped):
    found, small = TooLarge(LIMIT), reply(missing)
    found.note(point(), small)
    assert (found.smaller_than(point(micro_batch=4, accumulation=2)) is small) is skipped
    assert found.smaller_than(point(micro_batch=1, accumulation=8)) is None
