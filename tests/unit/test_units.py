import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20GiB", 20 * 2**30),
        ("20 gib", 20 * 2**30),
        ("1.5G", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("512 MiB", 2**29),
        ("3k", 3072),
        ("7b", 7),
        ("70000000", 70_000_000),
        (123_456_789, 123_456_789),
    ],
)
def test_a_size_is_read_as_people_write_it(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1e9", "5 parsecs", "0", "0.2b", True, False, "1 2", "9" * 400]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["20", 20, "24", 64 * 2**20 - 1])
def test_a_number_of_bytes_that_wants_a_unit_is_answered_with_it(text):
    with pytest.raises(ValueError, match=f"`{text}` is {text} bytes; did you mean `{text}GiB`"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("5 min", 300), ("1.5h", 5400), ("0.5S", 0.5)]
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "0s", "-1s", "5d", "s", "5m30s", "9" * 400 + "s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (2**30, "1 GiB"),
        (1.25 * 2**30, "1.25 GiB"),
        (-(2**20), "-1 MiB"),
        (999.7 * 2**10, "0.976 MiB"),
        (5 * 2**50, "5.12e+03 TiB"),
    ],
)
def test_a_size_is_written_with_three_digits(count, text):
    assert format_bytes(count) == text


@given(st.integers(1000, 999 * 2**40))
def test_a_written_size_is_close_to_the_size(count):
    number, unit = format_bytes(count).split()
    assert "e" not in number
    assert abs(parse_bytes(f"{float(number):.9f}{unit}") - count) <= 0.006 * count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.85, "850 ms"),
        (1, "1.0 s"),
        (119.9, "119.9 s"),
        (120, "2 min 0 s"),
        (250, "4 min 10 s"),
        (7200, "2.0 h"),
        (11520, "3.2 h"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_suits_it(seconds, text):
    assert format_seconds(seconds) == text
