"""The traces of several plans, each made once.

Plans of a job for several kinds of device ask for the same traces where the same kernels run on
them: only the memory that a process may take differs, and a child answers for many such limits.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.estimate.protocol import EstimateReply, Point
from autotune.job.methods import METHODS
from autotune.plan.children import traced_in_children
from autotune.plan.engines import bases
from autotune.plan.grid import ends_of
from autotune.plan.progress import Progress
from autotune.plan.variants import VariantTask
from autotune.process.child_server import ChildServer

_APART = ("points", "limit_bytes", "other_limits")
"""Fields in which tasks that share a trace may differ."""


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """One trace for several tasks, and its reply."""

    points: Sequence[Point]
    limits: Sequence[int | None]
    reply: EstimateReply

    def of(self, task: VariantTask) -> EstimateReply:
        """Return the part of the reply that answers a task."""
        if self.reply.problem is not None:
            return self.reply
        place = self.limits.index(task.request.limit_bytes)
        answers = self.reply.points if place == 0 else self.reply.at_limits[place - 1]
        points = [answers[self.points.index(point)] for point in task.request.points]
        return dataclasses.replace(self.reply, points=points, at_limits=[])


class SharedTraces:
    """Traces of several plans, as a function that a plan calls in place of its own."""

    def __init__(self, server: ChildServer, folder: Path, progress: Progress) -> None:
        self._server, self._folder, self._progress = server, folder, progress
        self._shared: dict[str, _Shared] = {}

    def make(self, plans: Sequence[Sequence[VariantTask]]) -> None:
        """Make the traces of all plans from which every task of theirs can be answered, if only by
        formula. (Where the method generates, each plan looks for its own.)"""
        groups: dict[str, list[VariantTask]] = {}
        for tasks in plans:
            base_tasks = [base.task for base in bases(tasks)]
            later = ends_of(base_tasks)
            for number, task in enumerate(base_tasks):
                online = METHODS[task.request.method].online
                if number not in later and not online and not self._is_made(task):
                    groups.setdefault(_key(task), []).append(task)
        merged = [_merged(group) for group in groups.values()]
        replies = traced_in_children(merged, self._server, self._folder / "shared", self._progress)
        for key, task, reply in zip(groups, merged, replies, strict=True):
            request = task.request
            self._shared[key] = _Shared(
                points=request.points,
                limits=[request.limit_bytes, *request.other_limits],
                reply=reply,
            )

    def _is_made(self, task: VariantTask) -> bool:
        """True if a trace answers this task already."""
        made = self._shared.get(_key(task))
        return made is not None and all(point in made.points for point in task.request.points)

    def __call__(
        self,
        tasks: Sequence[VariantTask],
        name: str,
        hear: Callable[[int, EstimateReply], None] | None,
    ) -> list[EstimateReply]:
        """Return the reply to each task; those that are not shared are traced now."""
        keys = [None if task.engine else _key(task) for task in tasks]
        known = {n: self._shared[key] for n, key in enumerate(keys) if key in self._shared}
        replies = {number: shared.of(tasks[number]) for number, shared in known.items()}
        for number, reply in replies.items():
            if hear is not None:
                hear(number, reply)
        left = [number for number in range(len(tasks)) if number not in replies]

        def receive(place: int, reply: EstimateReply) -> None:
            if hear is not None:
                hear(left[place], reply)

        if left:
            traced = traced_in_children(
                [tasks[n] for n in left], self._server, self._folder / name, self._progress, receive
            )
            replies |= dict(zip(left, traced, strict=True))
        return [replies[number] for number in range(len(tasks))]


def _key(task: VariantTask) -> str:
    """Return the same text for tasks that one trace can answer."""
    request = task.request.plain()
    fields = {name: value for name, value in request.items() if name not in (*_APART, "config")}
    return json.dumps([fields, task.traced.key], sort_keys=True)


def _merged(group: Sequence[VariantTask]) -> VariantTask:
    """Return one task with the points and the limits of all."""
    points = list({repr(point): point for task in group for point in task.request.points}.values())
    limits = sorted({task.request.limit_bytes or 0 for task in group}, reverse=True)
    request = dataclasses.replace(
        group[0].request, points=points, limit_bytes=limits[0], other_limits=limits[1:]
    )
    members = tuple(
        dataclasses.replace(member, place=points.index(task.request.points[member.place]))
        for task in group
        for member in task.members
    )
    return dataclasses.replace(group[0], request=request, members=members)
