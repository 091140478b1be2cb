"""What several ranks say as one measurement: the worst of them counts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

PEAKS = (
    "peak_memory_bytes",
    "allocated_peak_bytes",
    "reserved_peak_bytes",
    "generation_peak_bytes",
    "scoring_peak_bytes",
    "update_peak_bytes",
    "resident_bytes",
    "allocator_retries",
    "generation_parts",
)
OF_EACH = ("peak_memory_bytes", "allocated_peak_bytes", "tokens_per_s", "last_loss", "stages_s")

Reply = Mapping[str, Any]


def merged(replies: Sequence[Reply]) -> dict[str, Any]:
    """One reply for all ranks that ended well: times of the slowest, each peak of whoever has most.

    Tokens per second and per step are those of all ranks already, on every rank.
    """
    slowest = min(replies, key=lambda reply: reply.get("tokens_per_s") or 0.0)
    peaks = {name: _maximum(replies, name) for name in PEAKS}
    beyond = [reply for reply in replies if reply["outcome"] != "ok"]
    ranks = [
        {"rank": rank, **{name: reply.get(name) for name in OF_EACH}}
        for rank, reply in enumerate(replies)
    ]
    if not beyond:
        return {**slowest, **peaks, "ranks": ranks}
    fullest = max(beyond, key=lambda reply: reply.get("peak_memory_bytes") or 0)
    return {**fullest, **peaks, "ranks": ranks, "failed_rank": replies.index(fullest)}


def _maximum(replies: Sequence[Reply], name: str) -> int | None:
    values = [reply[name] for reply in replies if reply.get(name) is not None]
    return max(values) if values else None


def behind(steps: Sequence[int]) -> list[int]:
    """The ranks that have done fewer steps than others; empty: all have done as many."""
    return [rank for rank, count in enumerate(steps) if count < max(steps, default=0)]
