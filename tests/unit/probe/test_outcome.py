"""What a probe that ended well took beyond what it was given."""

from autotune.probe.outcome import beyond_limit


def test_only_what_is_above_the_limit_counts() -> None:
    assert beyond_limit(1100, 1000) == 100
    assert beyond_limit(1000, 1000) == 0
    assert beyond_limit(900, 1000) == 0


def test_without_a_limit_or_a_peak_nothing_is_beyond() -> None:
    assert beyond_limit(1100, None) == 0
    assert beyond_limit(None, 1000) == 0
