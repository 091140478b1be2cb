"""A job planned for several machines at once: the best configuration on each.

survey once -> bind for each machine -> the traces of all, each made once -> estimates on each

Plans of a job for several kinds of device ask for the same traces where the same kernels run on
them: only the memory that a process may take differs, and a child answers for many such limits.

Of several devices that share a training only the engine of the first candidate is traced (and of
the next, until the first one is); the others are by formula.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autotune.errors import UserError
from autotune.estimate.protocol import EstimateReply, Point
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts import Facts
from autotune.facts.machines import Machine
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.answer import Answer, answer_of
from autotune.plan.cache import PlanCache
from autotune.plan.children import trace_server, traced_in_children
from autotune.plan.choices import Choice, leanness
from autotune.plan.device import device_facts, placed, planned_facts, planned_limit
from autotune.plan.draft import Draft
from autotune.plan.engines import bases
from autotune.plan.estimator import Estimator
from autotune.plan.grid import ends_of
from autotune.plan.narrowing import kept_on_device, planned_space
from autotune.plan.progress import Progress
from autotune.plan.trace_choice import Effort
from autotune.plan.variants import VariantTask
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace
from autotune.space.definition import SpaceDefinition

_APART = ("points", "limit_bytes", "other_limits")
"""Fields in which tasks that share a trace may differ."""
BEST = Effort(first=1, settled=True)
"""The effort for several devices: only the best is shown."""


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


@dataclass(frozen=True, kw_only=True)
class MachinePlan:
    """The plan of a job on one machine.

    Attributes:
        job: with the machine's number of devices.
        first: the best choice; where nothing fits, the leanest; None: it cannot be planned.
        answer: what to use; None: nothing fits.
        problem: why it cannot be planned.
    """

    machine: Machine
    job: Job
    limit_bytes: int = 0
    facts: Facts | None = None
    space: SearchSpace | None = None
    first: Choice | None = None
    answer: Answer | None = None
    problem: str | None = None

    @property
    def is_safe(self) -> bool:
        """True if its best choice is safe, or it cannot be planned."""
        return self.first is None or self.first.safe

    @property
    def bound_space(self) -> SearchSpace:
        """The space of a plan that can be made."""
        assert self.space is not None
        return self.space

    def kept_on_device(self, *, activations: bool = True) -> Self:
        """Return the plan with the candidates that keep all on the devices, or all but
        activations."""
        if self.space is None:
            return self
        candidates = kept_on_device(self.space.candidates, activations=activations)
        space = dataclasses.replace(self.space, candidates=candidates)
        return dataclasses.replace(self, space=space)


def plan_machines(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    machines: Sequence[Machine],
    *,
    assume: bool = True,
    progress: Progress | None = None,
) -> list[MachinePlan]:
    """Plan a job for each machine, in their order.

    What is kept on the host is looked at where an engine is traced; activations, where nothing else
    is safe.

    Args:
        scratch: a folder for the files of the survey and the traces.
        assume: whether every package is taken to be there.

    Raises:
        UserError: the job cannot be, on any machine.
        MachineError: the training stack cannot be run here.
    """
    run, progress = RunFolder(path=scratch), progress or Progress()
    job, _ = placed(job, "cpu")  # the model and the data are looked at here
    with trace_server(scratch, elsewhere=True) as server:
        progress.surveying(job)
        here = planned_facts(job, run, server, None)
        traces = SharedTraces(server, scratch / "traces", progress)
        bound = [
            _bound(job, definition, device_facts(here, machine.kind, assume=assume), machine)
            for machine in machines
        ]
        single = [each.job.devices.total == 1 for each in bound]
        kept = [
            each.kept_on_device() if alone else each
            for each, alone in zip(bound, single, strict=True)
        ]
        plans = _answered(kept, traces, server, run)
        unsafe = [n for n, each in enumerate(plans) if single[n] and not each.is_safe]
        wider = [bound[n].kept_on_device(activations=False) for n in unsafe]
        again = _answered(wider, traces, server, run)
    for number, each in zip(unsafe, again, strict=True):
        plans[number] = each
    return plans


def _bound(job: Job, definition: SpaceDefinition, facts: Facts, machine: Machine) -> MachinePlan:
    """Return the plan of a machine as far as its space."""
    if machine.count is not None:
        devices = job.devices.model_copy(update={"count": machine.count})
        job = job.model_copy(update={"devices": devices})
    try:
        return MachinePlan(
            machine=machine,
            job=job,
            limit_bytes=planned_limit(job, facts),
            facts=facts,
            space=planned_space(definition, job, facts),
        )
    except UserError as error:
        problem = "; ".join(problem.what for problem in error.problems)
        return MachinePlan(machine=machine, job=job, problem=problem)


def _answered(
    plans: Sequence[MachinePlan],
    traces: SharedTraces,
    server: ChildServer,
    run: RunFolder,
) -> list[MachinePlan]:
    """Return the plans with their answers."""
    estimators = [_estimator(each, traces, server, run) for each in plans]
    pairs = list(zip(plans, estimators, strict=True))
    traces.make(
        [estimator.tasks(each.bound_space.candidates) for each, estimator in pairs if estimator]
    )
    return [
        each if estimator is None else _with_answer(each, estimator) for each, estimator in pairs
    ]


def _estimator(
    plan: MachinePlan, traces: SharedTraces, server: ChildServer, run: RunFolder
) -> Estimator | None:
    if plan.facts is None:
        return None
    return Estimator(
        job=plan.job,
        facts=plan.facts,
        limit=plan.limit_bytes,
        server=server,
        folder=run.path / "traces",
        rows=run.rows,
        ceilings=ceilings_of_kind(plan.machine.kind),
        effort=BEST,
        cache=PlanCache.of_user(),
        trace=traces,
    )


def _with_answer(plan: MachinePlan, estimator: Estimator) -> MachinePlan:
    choices = Draft(plan.bound_space, estimator).trace().choices
    answer = answer_of(choices, plan.job, estimator.facts)
    if answer is not None:
        return dataclasses.replace(plan, first=answer.choice, answer=answer)
    leanest = min(choices, key=lambda choice: leanness((choice.candidate, choice.estimate)))
    return dataclasses.replace(plan, first=leanest)
