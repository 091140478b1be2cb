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


def merged_reply(replies: Sequence[Reply]) -> dict[str, Any]:
    """Return one reply for all ranks that ended well: times of the slowest, each peak of whoever
    has most.

    Tokens per second and per step are those of all ranks already, on every rank.
    """
    slowest = min(replies, key=lambda reply: reply.get("tokens_per_s") or 0.0)
    peaks = {name: _maximum(replies, name) for name in PEAKS}
    beyond_limit = [reply for reply in replies if reply["outcome"] != "ok"]
    ranks = [
        {"rank": rank, **{name: reply.get(name) for name in OF_EACH}}
        for rank, reply in enumerate(replies)
    ]
    if not beyond_limit:
        return {**slowest, **peaks, "ranks": ranks}
    fullest = max(beyond_limit, key=lambda reply: reply.get("peak_memory_bytes") or 0)
    return {**fullest, **peaks, "ranks": ranks, "failed_rank": replies.index(fullest)}


def _maximum(replies: Sequence[Reply], name: str) -> int | None:
    values = [reply[name] for reply in replies if reply.get(name) is not None]
    return max(values) if values else None


def lagging_ranks(steps: Sequence[int]) -> list[int]:
    """Return the ranks that have done fewer steps than others; empty: all have done as many."""
    return [rank for rank, count in enumerate(steps) if count < max(steps, default=0)]
