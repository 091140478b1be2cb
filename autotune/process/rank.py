"""The place of a process among the ranks of a probe. Plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank a process is, and where they meet.

    Attributes:
        listener: descriptor of the bound socket on which the first rank waits for the others.
    """

    rank: int
    count: int
    host: str
    port: int
    listener: int | None
