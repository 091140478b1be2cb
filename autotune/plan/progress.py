"""How many candidates have been estimated, while children trace: told as it grows."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from autotune.estimate.protocol import POINT
from autotune.plan.variants import PathTask
from autotune.process.limits import Watcher

Told = Callable[[int, int], None]
"""Hears how many candidates are estimated, and of how many."""


def nobody(done: int, of: int) -> None:
    """Does not care."""


class Count:
    """Counts the candidates of tasks that are answered in several threads."""

    def __init__(self, tasks: Sequence[PathTask], told: Told) -> None:
        self._told, self._lock = told, threading.Lock()
        self._done, self._of = 0, sum(len(task.candidates) for task in tasks)
        told(0, self._of)

    def watcher(self, task: PathTask) -> "TaskCount":
        """Of one task."""
        return TaskCount(task, self._add)

    def _add(self, candidates: int) -> None:
        with self._lock:
            self._done += candidates
            self._told(self._done, self._of)


class TaskCount:
    """Hears of the points of one task; several candidates may share one."""

    def __init__(self, task: PathTask, add: Callable[[int], None]) -> None:
        self._task, self._add, self._counted = task, add, 0

    @property
    def watch(self) -> Watcher:
        """What sees the child's events."""
        return self._hear

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("event") == POINT:
            candidates = self._task.places.count(event["index"])
            self._counted += candidates
            self._add(candidates)

    def ended(self) -> None:
        """The child has ended: what it did not tell of counts too."""
        left = len(self._task.candidates) - self._counted
        if left:
            self._add(left)
