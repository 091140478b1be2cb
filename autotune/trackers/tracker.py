"""What a tracker does, and the plain data that it is given."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

PROBE, RESULT = "probe", "result"
OVER: dict[str, Any] = {}
"""What ends the feed of a run."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as a tracker hears of it when it begins.

    Attributes:
        id: of no other run: the name of its study.
        name: of its folder.
        folder: of a tracker that keeps files beside the run's.
        config: the job in short.
        labels: words to find it by.
    """

    id: str
    name: str
    folder: str
    config: dict[str, Any]
    labels: list[str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of the tool: a probe, or what the whole run came to.

    Attributes:
        key: of no other entry of this run.
        kind: `probe` or `result`.
        config: the job in short, with the knobs over it.
        metrics: figures by name; their units are in the names.
        outcome: of the probe, or of the run; `reason` says why.
        state: `finished`, `failed` or `killed`.
        bundle: folder of files to keep with it.
    """

    key: str
    kind: str
    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    outcome: str
    reason: str
    state: str
    bundle: str | None = None

    @property
    def mark(self) -> str:
        """Name under which a sent entry is remembered: a result may come again, and differ."""
        if self.kind == PROBE:
            return self.key
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.key}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class Tracker(ABC):
    """One tool. Where it fails it raises what it likes: the worker makes words of that."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    @abstractmethod
    def record(self, entry: Entry) -> None:
        """Make one run of the tool, from its beginning to its end. One that was recorded before is
        made anew in its place, or goes on."""
