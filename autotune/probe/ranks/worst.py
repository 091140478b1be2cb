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
    slowest = min(replies, key=lambda one: one.get("tokens_per_s") or 0.0)
    peaks = {name: _most(replies, name) for name in PEAKS}
    beyond = [one for one in replies if one["outcome"] != "ok"]
    each = [
        {"rank": rank, **{name: one.get(name) for name in OF_EACH}}
        for rank, one in enumerate(replies)
    ]
    if not beyond:
        return {**slowest, **peaks, "ranks": each}
    most = max(beyond, key=lambda one: one.get("peak_memory_bytes") or 0)
    return {**most, **peaks, "ranks": each, "failed_rank": replies.index(most)}


def _most(replies: Sequence[Reply], name: str) -> int | None:
    known = [one[name] for one in replies if one.get(name) is not None]
    return max(known) if known else None


def behind(steps: Sequence[int]) -> list[int]:
    """The ranks that have done fewer steps than others; empty: all have done as many."""
    return [rank for rank, done in enumerate(steps) if done < max(steps, default=0)]
