"""Where the ranks of a probe write."""

import shutil
from pathlib import Path

from autotune.process.messages import ChildFolder

SILENT = "silent_rank.json"
"""Which rank died without a word; the probe's child then ends as it did."""


def rank_folder(path: Path, rank: int) -> ChildFolder:
    """Return the folder of one rank of the probe in `path`."""
    return ChildFolder(path=path / f"rank-{rank}")


def clear_ranks(path: Path) -> None:
    """Nothing of an earlier probe in this folder may be taken for this one's."""
    (path / SILENT).unlink(missing_ok=True)
    for folder in path.glob("rank-*"):
        shutil.rmtree(folder, ignore_errors=True)
