"""The files of a probe's ranks, and one reply for all of them, or for all machines: the worst
counts."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.process.messages import ChildFolder
from autotune.training.spec import Part

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
    "host_peak_bytes",
    "host_loading_peak_bytes",
)
OF_MEMORY = ("oom", "host_oom")
WITH_OTHERS = "another machine's part of it failed"
"""The reason to stop a part of a call."""
RANK_FIELDS = ("peak_memory_bytes", "allocated_peak_bytes", "tokens_per_s", "last_loss", "stages_s")

Reply = Mapping[str, Any]


def rank_folder(path: Path, rank: int) -> ChildFolder:
    """Return the folder of one rank of the probe in `path`."""
    return ChildFolder(path=path / f"rank-{rank}")


def folder_of_all(path: Path, part: Part) -> Path:
    """Return the folder of a probe, of which a machine has `path` for its part."""
    return path.parent if part.node else path


def clear_ranks(path: Path) -> None:
    """Remove what an earlier probe in this folder left, so that it is not taken for this one's."""
    (path / SILENT).unlink(missing_ok=True)
    for folder in path.glob("rank-*"):
        shutil.rmtree(folder, ignore_errors=True)


def merged_reply(replies: Sequence[Reply], first: int = 0) -> dict[str, Any]:
    """Return one reply for all ranks, from `first` on, that ended well: times of the slowest, each
    peak of the rank with most. The replies may be those of machines, too.

    Tokens per second and per step are those of all ranks already, on every rank.
    """
    slowest = min(replies, key=lambda reply: reply.get("tokens_per_s") or 0.0)
    peaks = {name: _maximum(replies, name) for name in PEAKS}
    beyond_limit = [reply for reply in replies if reply["outcome"] != "ok"]
    ranks = [
        one
        for rank, reply in enumerate(replies, first)
        for one in reply.get("ranks")
        or [{"rank": rank, **{name: reply.get(name) for name in RANK_FIELDS}}]
    ]
    if not beyond_limit:
        return {**slowest, **peaks, "ranks": ranks}
    fullest = max(beyond_limit, key=lambda reply: reply.get("peak_memory_bytes") or 0)
    failed = fullest.get("failed_rank")
    failed = first + replies.index(fullest) if failed is None else failed
    return {**fullest, **peaks, "ranks": ranks, "failed_rank": failed}


def merged_measurement(replies: Sequence[Reply], path: Path) -> dict[str, Any]:
    """Return one measurement for all machines of the probe in `path`: of one that failed that
    which the others followed, as `root_failure` has it for the ranks of a machine."""
    if all(reply.get("ranks") for reply in replies):
        nodes = ", ".join(reply["node"] for reply in replies)
        return {**merged_reply(replies), "node": nodes}

    def order(reply: Reply) -> tuple[bool, bool, bool, float]:
        rank = reply.get("failed_rank")
        file = rank_folder(path, 0 if rank is None else rank).reply
        at = file.stat().st_mtime if file.exists() else 0.0
        is_last = bool(reply.get("ranks")) or reply["reason"] == WITH_OTHERS
        return is_last, reply["outcome"] not in OF_MEMORY, bool(reply.get("failure")), at

    first: Reply = min(replies, key=order)
    return dict(first)


def _maximum(replies: Sequence[Reply], name: str) -> int | None:
    values = [reply[name] for reply in replies if reply.get(name) is not None]
    return max(values) if values else None


def lagging_ranks(steps: Sequence[int]) -> list[int]:
    """Return the ranks that have done fewer steps than others; empty: all have done as many."""
    return [rank for rank, count in enumerate(steps) if count < max(steps, default=0)]
