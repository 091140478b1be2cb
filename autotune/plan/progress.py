"""How far estimates are: who hears of it, and the count of candidates while children trace."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from autotune.estimate.protocol import POINT
from autotune.job.job import Job
from autotune.plan.choices import Choice
from autotune.plan.variants import VariantTask
from autotune.process.limits import Watcher
from autotune.space.bind import SearchSpace


class Progress:
    """Hears how far estimates are; this one says nothing."""

    def surveying(self, job: Job) -> None:
        """The stack is loaded, the model looked at and the data tokenized."""

    def starting_anew(self, reason: str) -> None:
        """No process can be forked here; each imports the stack by itself."""

    def measuring(self) -> None:
        """The rates of the device are measured, once for all plans and runs on this machine."""

    def looking_at(self, what: str) -> None:
        """Estimates from here on are of this variation of the job."""

    def estimating(self, candidates: int) -> None:
        """Memory and speed of so many candidates are estimated."""

    def estimated(self, done: int, of: int) -> None:
        """So many of the candidates that have to be traced are estimated."""

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        """Of what is estimated so far another choice is the best."""

    def nothing_fits(self, limit_bytes: int) -> None:
        """Nothing fits in so much; estimates from here on are of what would make it fit."""


class Count:
    """Counts the candidates of tasks that are answered in several threads."""

    def __init__(self, tasks: Sequence[VariantTask], progress: Progress) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._done, self._of = 0, sum(len(task.members) for task in tasks)
        progress.estimated(0, self._of)

    def watcher(self, task: VariantTask) -> "TaskCount":
        """Return the count of one task."""
        return TaskCount(task, self._add)

    def _add(self, candidates: int) -> None:
        with self._lock:
            self._done += candidates
            self._progress.estimated(self._done, self._of)


class TaskCount:
    """Hears of the points of one task; several candidates may share one."""

    def __init__(self, task: VariantTask, add: Callable[[int], None]) -> None:
        self._task, self._add, self._counted = task, add, 0

    @property
    def watch(self) -> Watcher:
        """What sees the child's events."""
        return self._hear

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("event") == POINT:
            candidates = sum(member.place == event["index"] for member in self._task.members)
            self._counted += candidates
            self._add(candidates)

    def ended(self) -> None:
        """Count what the child did not tell of: it has ended."""
        left = len(self._task.members) - self._counted
        if left:
            self._add(left)
