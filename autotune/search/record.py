"""A probe in the record: its candidate, how it ended, by how much it missed its memory. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.probe.protocol import Measurement
from autotune.space.knobs import Candidate
from autotune.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Record:
    """One probe in the record: its number, its candidate, its measurement (None: still running)."""

    number: int
    candidate: Candidate
    measurement: Measurement | None


def excess_bytes(measurement: Measurement, allowed_bytes: int | None) -> float | None:
    """Return the bytes beyond what is allowed (<= 0: fits); None where the probe does not show it.

    Of an out-of-memory probe this is a lower bound: what came after the refused allocation is not
    known. Where not even that is known it is 1.
    """
    if measurement.outcome == "oom":
        headroom = 0
        if allowed_bytes is not None and measurement.memory_limit_bytes is not None:
            headroom = max(measurement.memory_limit_bytes - allowed_bytes, 0)
        return float((measurement.missing_bytes or 1) + headroom)
    if measurement.outcome == "ok" and allowed_bytes is not None and measurement.peak_memory_bytes:
        return float(measurement.peak_memory_bytes - allowed_bytes)
    return None


def counts_as_probe(record: Record) -> bool:
    """True if a record is a probe that was not cut off."""
    measurement = record.measurement
    return measurement is not None and measurement.outcome not in {"busy", "interrupted"}


def host_shortfall(records: Sequence[Record]) -> str | None:
    """Return a sentence on the memory that the host lacked; None where it never ran out."""
    host_ooms = [(r.number, r.measurement) for r in records if r.measurement is not None]
    host_ooms = [(number, m) for number, m in host_ooms if m.outcome == "host_oom"]
    if not host_ooms:
        return None
    number, nearest = min(host_ooms, key=lambda pair: (pair[1].missing_bytes or 2**62, pair[0]))
    if nearest.missing_bytes is None:
        return f"the host's memory ran out (probe {number})"
    shortfall = format_bytes(nearest.missing_bytes)
    return f"the host's memory ran out: nearest was probe {number}, at least {shortfall} short"
