"""The files of a probe's ranks, and one reply for all of them: the worst counts."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.process.messages import ChildFolder

SILENT = "silent_rank.json"
"""The file that names a rank which died without a reply; the probe's child then ends as it did."""
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
RANK_FIELDS = ("peak_memory_bytes", "allocated_peak_bytes", "tokens_per_s", "last_loss", "stages_s")

Reply = Mapping[str, Any]


def rank_folder(path: Path, rank: int) -> ChildFolder:
    """Return the folder of one rank of the probe in `path`."""
    return ChildFolder(path=path / f"rank-{rank}")


def clear_ranks(path: Path) -> None:
    """Remove what an earlier probe in this folder left, so that it is not taken for this one's."""
    (path / SILENT).unlink(missing_ok=True)
    for folder in path.glob("rank-*"):
        shutil.rmtree(folder, ignore_errors=True)


def merged_reply(replies: Sequence[Reply]) -> dict[str, Any]:
    """Return one reply for all ranks that ended well: times of the slowest, each peak of the
    rank with most.

    Tokens per second and per step are those of all ranks already, on every rank.
    """
    slowest = min(replies, key=lambda reply: reply.get("tokens_per_s") or 0.0)
    peaks = {name: _maximum(replies, name) for name in PEAKS}
    beyond_limit = [reply for reply in replies if reply["outcome"] != "ok"]
    ranks = [
        {"rank": rank, **{name: reply.get(name) for name in RANK_FIELDS}}
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
