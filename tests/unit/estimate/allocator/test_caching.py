"""The caching allocator's rules, each by numbers worked out by hand.

`torch.cuda.memory_allocated` and `memory_reserved` would say the same of the same sequence.
"""

import pytest

from autotune.estimate.allocator.replay import CachingAllocator, OutOfMemory
from autotune.estimate.records.events import STREAM
from tests.unit.estimate.allocator.snapshots import snapshot

MIB = 1 << 20


def allocator(limit=None, expandable=False):
    return CachingAllocator(limit, expandable_segments=expandable)


def filled(*sizes, limit=None, expandable=False):
    """An allocator with allocations of these sizes, named 0, 1, ..."""
    result = allocator(limit, expandable)
    for key, size in enumerate(sizes):
        result.allocate(key, size)
    return result


def layout(caching):
    """(size in MiB, in use?) of every block of every segment."""
    return [
        [(block.size_bytes / MIB, block.allocated) for block in segment.blocks]
        for segment in snapshot(caching)
    ]


# ---- segments of fixed size


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounding comes first
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left, 1 MiB, is not split off
        (33 * MIB + 1, 34 * MIB, 34 * MIB),
    ],
)
def test_the_first_request_takes_a_segment_of_its_class(request_bytes, allocated, reserved):
    caching = filled(request_bytes)
    assert (caching.allocated_bytes, caching.reserved_bytes) == (allocated, reserved)


def test_a_request_of_nothing_takes_nothing_and_can_be_freed_once():
    caching = filled(0)
    assert (caching.allocated_bytes, caching.peak_reserved_bytes, snapshot(caching)) == (0, 0, [])
    caching.free(0)
    with pytest.raises(KeyError):
        caching.free(0)


def test_a_negative_size_and_a_key_in_use_are_refused():
    caching = filled(1000)
    with pytest.raises(ValueError, match="must not be negative, but got -1"):
        caching.allocate(1, -1)
    with pytest.raises(ValueError, match="allocation 0 has not been freed"):
        caching.allocate(0, 1000)
    caching.free(0)
    with pytest.raises(KeyError):
        caching.free(0)
    caching.allocate(0, 1000)
    assert caching.allocated_bytes == 1024


def test_small_requests_share_segments_down_to_the_last_512_bytes():
    caching = filled(MIB, MIB - 512, 512)
    assert (caching.allocated_bytes, caching.reserved_bytes) == (2 * MIB, 2 * MIB)
    caching.allocate(3, 1)
    assert caching.reserved_bytes == 4 * MIB


def test_a_large_block_is_split_only_if_more_than_1_mib_remains():
    caching = filled(5 * MIB)
    assert layout(caching) == [[(5, True), (15, False)]]
    caching.allocate(1, 14 * MIB)
    assert layout(caching) == [[(5, True), (15, True)]]
    assert caching.allocated_bytes == 20 * MIB


def test_the_pools_do_not_serve_each_other():
    caching = filled(5 * MIB, MIB)
    assert layout(caching) == [[(1, True), (1, False)], [(5, True), (15, False)]]
    assert [segment.small for segment in snapshot(caching)] == [True, False]


def test_the_smallest_block_that_fits_is_taken():
    caching = filled(40 * MIB, 24 * MIB, 30 * MIB)
    for key in range(3):
        caching.free(key)
    caching.allocate(3, 22 * MIB)
    assert layout(caching) == [[(40, False)], [(22, True), (2, False)], [(30, False)]]


def test_among_blocks_of_one_size_the_lowest_is_taken():
    caching = filled(12 * MIB, 12 * MIB, 12 * MIB)
    for key in (2, 0, 1):
        caching.free(key)
    caching.allocate(3, 12 * MIB)
    assert layout(caching) == [[(12, True)], [(12, False)], [(12, False)]]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2)])
def test_freed_neighbours_become_one_block_again(order):
    caching = filled(*[5 * MIB] * 4)
    assert caching.reserved_bytes == 20 * MIB
    for key in order:
        caching.free(key)
    assert layout(caching) == [[(20, False)]]
    caching.allocate(4, 20 * MIB)
    assert caching.peak_reserved_bytes == 20 * MIB


def test_peaks_are_kept():
    caching = filled(30 * MIB, 30 * MIB)
    caching.free(0)
    caching.free(1)
    caching.allocate(2, 4 * MIB)
    assert caching.allocated_bytes == 4 * MIB
    assert caching.peak_allocated_bytes == caching.peak_reserved_bytes == 60 * MIB


def test_at_the_limit_whole_segments_of_both_pools_are_given_back_and_it_is_tried_again():
    caching = filled(20 * MIB, MIB, 12 * MIB, limit=40 * MIB)
    caching.free(0)
    caching.free(1)
    assert caching.reserved_bytes == 34 * MIB
    caching.allocate(3, 28 * MIB)
    assert layout(caching) == [[(12, True)], [(28, True)]]
    assert caching.retries == 1


def test_an_emptied_cache_is_given_back_and_counts_as_no_retry():
    caching = filled(20 * MIB, MIB, 12 * MIB)
    caching.free(0)
    caching.empty_cache()
    assert (caching.reserved_bytes, caching.retries) == (14 * MIB, 0)
    assert caching.peak_reserved_bytes == 34 * MIB


def test_up_to_the_last_byte_of_the_limit_nothing_is_retried():
    assert filled(5 * MIB, 20 * MIB, limit=40 * MIB).retries == 0
    caching = filled(5 * MIB, limit=40 * MIB - 1)
    with pytest.raises(OutOfMemory):
        caching.allocate(1, 20 * MIB)
    assert caching.retries == 1


def test_a_split_segment_is_not_given_back_and_what_is_missing_is_told():
    caching = filled(5 * MIB, 5 * MIB, limit=40 * MIB)
    caching.free(0)
    with pytest.raises(OutOfMemory, match="lacks 10485760 bytes") as caught:
        caching.allocate(2, 30 * MIB - 100)
    error = caught.value
    assert error.requested_bytes == 30 * MIB - 100
    assert (error.reserved_bytes, error.allocated_bytes) == (20 * MIB, 5 * MIB)
    assert error.missing_bytes == 10 * MIB
    with pytest.raises(KeyError):
        caching.free(2)
    caching.allocate(2, 20 * MIB)
    assert (caching.retries, caching.reserved_bytes) == (1, 40 * MIB)


# ---- expandable segments


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (11 * MIB, 11 * MIB, 20 * MIB),  # what is left is split off, however little
        (20 * MIB - 512, 20 * MIB - 512, 20 * MIB),
        (20 * MIB + 1, 20 * MIB + 512, 40 * MIB),
    ],
)
def test_an_expandable_segment_takes_whole_pages(request_bytes, allocated, reserved):
    caching = filled(request_bytes, expandable=True)
    assert (caching.allocated_bytes, caching.reserved_bytes) == (allocated, reserved)


def test_a_segment_grows_from_its_free_end():
    sizes = [15 * MIB, 15 * MIB, 10 * MIB]
    caching = filled(*sizes, expandable=True)
    assert layout(caching) == [[(15, True), (15, True), (10, True)]]
    assert caching.reserved_bytes == 40 * MIB
    assert filled(*sizes).reserved_bytes == 42 * MIB


def test_the_end_that_can_grow_is_taken_last():
    caching = filled(8 * MIB, 6 * MIB, expandable=True)
    caching.free(0)
    caching.allocate(2, 5 * MIB)  # the end has 6 MiB, which would be the closer fit
    assert layout(caching) == [[(5, True), (3, False), (6, True), (6, False)]]
    caching.allocate(3, 4 * MIB)
    assert layout(caching) == [[(5, True), (3, False), (6, True), (4, True), (2, False)]]


def test_what_is_free_at_the_end_of_a_segment_does_not_count_against_the_limit():
    caching = filled(15 * MIB, limit=30 * MIB, expandable=True)
    with pytest.raises(OutOfMemory) as caught:
        caching.allocate(1, 25 * MIB)  # 5 MiB are free there, 26 are asked for beside the 20
    assert caught.value.missing_bytes == 16 * MIB


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        (35, [[(5, True), (10, True), (5, False)], [(5, True), (35, False), (20, True)]]),
        (34, [[(5, True), (15, False)], [(5, True), (10, True), (24, False), (21, True)]]),
    ],
)
def test_a_block_before_a_hole_counts_with_the_hole(plain, expected):
    sizes = [size * MIB for size in (5, 35, 5, plain, 55 - plain)]
    caching = filled(*sizes, limit=102 * MIB, expandable=True)
    caching.free(1)
    with pytest.raises(OutOfMemory):
        caching.allocate(5, 50 * MIB)
    caching.free(3)
    caching.allocate(6, 10 * MIB)  # 15 MiB and a hole of 20, against `plain`
    assert layout(caching) == expected


def with_a_hole():
    """Used: 30 to 80 MiB, at a limit of 86. The page from 0 to 20 MiB has been given back."""
    caching = filled(30 * MIB, 10 * MIB, 40 * MIB, limit=86 * MIB, expandable=True)
    caching.free(0)
    with pytest.raises(OutOfMemory) as caught:
        caching.allocate(3, 35 * MIB)
    return caching, caught.value


def test_at_the_limit_pages_without_a_used_byte_are_given_back():
    caching, error = with_a_hole()
    assert error.reserved_bytes == caching.reserved_bytes == 60 * MIB
    assert error.missing_bytes == 10 * MIB
    [segment] = snapshot(caching)
    assert segment.address == 20 * MIB
    assert layout(caching) == [[(10, False), (10, True), (40, True)]]


def test_a_hole_is_mapped_again_where_it_is_the_lowest_place_that_fits():
    caching, _ = with_a_hole()
    caching.allocate(3, 25 * MIB)
    assert layout(caching) == [[(25, True), (5, False), (10, True), (40, True)]]
    assert (caching.reserved_bytes, caching.retries) == (80 * MIB, 1)


def test_a_hole_that_is_too_small_is_left():
    caching, _ = with_a_hole()
    caching.free(2)
    caching.allocate(3, 31 * MIB)
    [segment] = snapshot(caching)
    assert segment.address == 20 * MIB
    assert layout(caching) == [[(10, False), (10, True), (31, True), (9, False)]]


def test_neighbouring_holes_are_one_and_mapped_at_once():
    caching = filled(20 * MIB, 20 * MIB, 80 * MIB, limit=120 * MIB, expandable=True)
    for key, size in ((0, 30 * MIB), (1, 45 * MIB)):
        caching.free(key)
        with pytest.raises(OutOfMemory):
            caching.allocate(3, size)
    for key in range(3, 33):
        caching.allocate(key, MIB)
    assert caching.reserved_bytes == 110 * MIB
    with pytest.raises(OutOfMemory) as caught:
        caching.allocate(33, 35 * MIB)
    assert caught.value.missing_bytes == 26 * MIB
    assert (caching.reserved_bytes, caching.peak_reserved_bytes) == (110 * MIB, 120 * MIB)


def test_stretches_of_pages_on_both_sides_of_a_free_block_are_joined():
    caching = filled(20 * MIB, 20 * MIB, limit=66 * MIB, expandable=True)
    caching.free(0)
    with pytest.raises(OutOfMemory):
        caching.allocate(2, 50 * MIB)
    assert layout(caching) == [[(20, True)]]
    caching.free(1)
    caching.allocate(2, 45 * MIB)
    assert layout(caching) == [[(45, True), (15, False)]]
    assert (caching.reserved_bytes, caching.retries) == (60 * MIB, 1)


# ---- streams


@pytest.mark.parametrize("expandable", [False, True])
def test_what_one_stream_lets_go_of_does_not_serve_another(expandable):
    caching = allocator(expandable=expandable)
    caching.allocate(STREAM, 40 * MIB)
    caching.free(STREAM)
    caching.allocate(1, 40 * MIB)
    assert caching.reserved_bytes == 80 * MIB
    caching.allocate(STREAM + 2, 40 * MIB)
    assert caching.reserved_bytes == 80 * MIB
