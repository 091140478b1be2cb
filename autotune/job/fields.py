"""How fields of a job are written: sizes, durations, batches. Pure."""

import re

from pydantic import BaseModel, ConfigDict

from autotune.units import parse_bytes, parse_seconds

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


def as_bytes(value: object) -> object:
    """A size: a text such as `20GiB`, as bytes."""
    return parse_bytes(value) if isinstance(value, str | int) else value


def as_duration(value: object) -> object:
    """A duration: a text such as `30m`, as seconds."""
    if value is None or isinstance(value, str):
        return value if value is None else parse_seconds(value)
    raise ValueError(f"`{value}` is not a duration; write for example `90s`, `30m` or `1.5h`")


def as_batch(value: object) -> int | str:
    """A global batch: rows, or `N tokens`."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be a whole number of sequences, or `N tokens`, but got {value!r}")
    if isinstance(value, str):
        match = _TOKENS.fullmatch(value)
        if not match:
            raise ValueError(f"`{value}` is neither a whole number nor `N tokens`")
        value = f"{int(match[1].replace('_', ''))} tokens"
    if int(str(value).split()[0]) <= 0:
        raise ValueError(f"must be positive, but got {value}")
    return value
