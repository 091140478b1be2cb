"""Where the ranks of a probe write."""

from pathlib import Path

from autotune.probe.protocol import ProbeFolder

SILENT = "silent_rank.json"
"""Which rank died without a word; the probe's child then ends as it did."""


def rank_folder(path: Path, rank: int) -> ProbeFolder:
    """The folder of one rank of the probe in `path`."""
    return ProbeFolder(path=path / f"rank-{rank}")
