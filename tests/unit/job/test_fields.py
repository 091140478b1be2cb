"""How fields of a job are written, and the bounds that no real job comes near."""

import re

import pytest

from autotune.job.fields import (
    MOST_MEMORY,
    MOST_ROWS,
    MOST_TOKENS,
    as_batch,
    as_bytes,
    as_duration,
)


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, None), ("3GiB", 3 * 2**30), (2**31, 2**31), ("512 TiB", MOST_MEMORY)],
)
def test_a_size_is_bytes(value, size):
    assert as_bytes(value) == size


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1e10, "`10000000000.0` is not a size; write for example `20GiB`"),
        (20.0, "`20.0` is not a size; write for example `20GiB`"),
        (0.5, "`0.5` is not a size; write for example `0.5GiB`"),
        (True, "`True` is not a size"),
        ([1], "`[1]` is not a size; write for example `20GiB`"),
        (20, "did you mean `20GiB`?"),
        (2**26 - 1, "`67108863`: a size below 64 MiB needs a unit; write for example `20GiB`"),
        ("67108863", "a size below 64 MiB needs a unit"),
        ("513TiB", "must be at most 512 TiB, but got `513TiB`"),
        (10**23, "must be at most 512 TiB"),
    ],
)
def test_what_is_no_size_is_told_how_to_write_one(value, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        as_bytes(value)


@pytest.mark.parametrize("value", [1, MOST_ROWS, "1 tokens", f"{MOST_TOKENS} tokens"])
def test_batches_up_to_the_bound_are_taken(value):
    assert as_batch(value) == value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "must be positive, but got 0"),
        (10**23, "must be at most 1,000,000 rows, but got 100000000000000000000000"),
        (f"{10**9 + 1} tokens", "must be at most 1,000,000,000 tokens"),
        ("9" * 5000 + " tokens", "must be at most 1,000,000,000 tokens"),
        ("0_0 tokens", "must be positive"),
        ("many", "is neither a whole number nor `N tokens`"),
    ],
)
def test_batches_beyond_are_refused_with_the_bound(value, told):
    with pytest.raises(ValueError, match=told):
        as_batch(value)


def test_a_duration_has_a_bound_too():
    assert as_duration("30m") == 1800.0
    with pytest.raises(ValueError, match="at most 1,000,000 minutes, but got `99999999h`"):
        as_duration("99999999h")
