"""Bytes, durations and speeds, as people write them and so that people can read them."""

import math
import re

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BYTES |= {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
LEAST_WITHOUT_UNIT = 64 * 2**20
"""The smallest size without a unit: no training is limited to fewer bytes."""
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return bytes from `3GiB`, `512 MiB`, `2e9`-free plain numbers; `G` means GiB.

    Raises:
        ValueError: not a positive size, or so small a number without a unit that one is missing.
    """
    if isinstance(text, bool):
        raise ValueError(f"`{text}` is not a size; write for example `20GiB`")
    match = _NUMBER.fullmatch(str(text))
    if not match or match[2].lower() not in _BYTES:
        raise ValueError(f"`{text}` is not a size; write for example `20GiB`")
    size = float(match[1]) * _BYTES[match[2].lower()]
    if not math.isfinite(size):
        raise ValueError(f"`{str(text)[:20]}...` is too large for a size")
    value = int(size)
    if value <= 0:
        raise ValueError(f"a size must be positive, but got `{text}`")
    if not match[2] and value < LEAST_WITHOUT_UNIT:
        raise ValueError(f"`{text}` is {value} bytes; did you mean `{value}GiB`?")
    return value


def parse_seconds(text: str) -> float:
    """Return seconds from `90s`, `5m`, `1.5h`.

    Raises:
        ValueError: not a positive duration with a unit.
    """
    match = _NUMBER.fullmatch(text)
    if not match or match[2].lower() not in _SECONDS or not 0 < float(match[1]) < math.inf:
        raise ValueError(f"`{text}` is not a duration; write for example `90s`, `5m` or `1.5h`")
    return float(match[1]) * _SECONDS[match[2].lower()]


def format_bytes(count: int | float) -> str:
    """Return a size with three significant digits: `1.25 GiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a duration: `850 ms`, `12.3 s`, `4 min 10 s`, `3.2 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{seconds / 3600:.1f} h"


def format_speed(tokens_per_s: float) -> str:
    """Return a speed: `45k tokens/s`."""
    if tokens_per_s < 1000:
        return f"{tokens_per_s:.3g} tokens/s"
    return f"{tokens_per_s / 1000:.3g}k tokens/s"
