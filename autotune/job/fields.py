"""How fields of a job are written: sizes, durations, batches. Pure."""

import re

from pydantic import BaseModel, ConfigDict

from autotune.units import LEAST_WITHOUT_UNIT, format_bytes, parse_bytes, parse_seconds

MOST_ROWS, MOST_TOKENS = 10**6, 10**9
"""Of a global batch. No real job comes near this or what follows; beyond it there is no answer in
time."""
MOST_LENGTH = 10**8
"""Tokens of a row."""
MOST_DATA_ROWS = 10**12
MOST_DEVICES, MOST_NODES = 4096, 100_000
"""Devices of a machine, and machines."""
MOST_MINUTES, MOST_PROBES = 10**6, 10**6
MOST_MEMORY = 2**49
MOST_LISTED = 64
"""Values that a job lists of one knob."""
_MOST_GIB = 8192
"""A number without a unit up to here may be meant as GiB."""
_TOKENS = re.compile(r"\s*([0-9][0-9_]*)\s*tokens\s*")


class Strict(BaseModel):
    """A part of a job: unknown fields and other types are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def as_bytes(value: object) -> int | None:
    """Return a size: a text such as `20GiB`, or a whole number, as bytes."""
    if value is None:
        return None
    if not isinstance(value, str | int):
        meant = f"{value:g}" if isinstance(value, float) and 0 < value <= _MOST_GIB else "20"
        raise ValueError(f"`{value}` is not a size; write for example `{meant}GiB`")
    text = str(value).strip()
    if text.isdecimal() and len(text) < 10 and _MOST_GIB < int(text) < LEAST_WITHOUT_UNIT:
        least = format_bytes(LEAST_WITHOUT_UNIT)
        raise ValueError(f"`{text}`: a size below {least} needs a unit; write for example `20GiB`")
    size = parse_bytes(value)
    if size > MOST_MEMORY:
        raise ValueError(f"must be at most {format_bytes(MOST_MEMORY)}, but got `{text[:40]}`")
    return size


def as_duration(value: object) -> float | None:
    """Return a duration: a text such as `30m`, as seconds."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"`{value}` is not a duration; write for example `90s`, `30m` or `1.5h`")
    seconds = parse_seconds(value)
    if seconds > 60 * MOST_MINUTES:
        raise ValueError(f"must be at most {MOST_MINUTES:,} minutes, but got `{value[:40]}`")
    return seconds


def as_batch(value: object) -> int | str:
    """Return a global batch: rows, or `N tokens`."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be a whole number of sequences, or `N tokens`, but got {value!r}")
    if isinstance(value, int):
        _check_batch(value, MOST_ROWS, "rows", value)
        return value
    match = _TOKENS.fullmatch(value)
    if not match:
        raise ValueError(f"`{value[:40]}` is neither a whole number nor `N tokens`")
    digits = match[1].replace("_", "").lstrip("0")
    count = int(digits[:20] or "0")
    _check_batch(count, MOST_TOKENS, "tokens", value[:40])
    return f"{count} tokens"


def _check_batch(count: int, most: int, unit: str, given: object) -> None:
    if count <= 0:
        raise ValueError(f"must be positive, but got {given}")
    if count > most:
        raise ValueError(f"must be at most {most:,} {unit}, but got {given}")
