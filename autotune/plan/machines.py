"""A job planned for several machines at once: the best configuration on each.

survey once -> bind for each machine -> the traces of all, each made once -> estimates on each

Of several devices that share a training only the engine of the first candidate is traced (and of
the next, until the first one is); the others are by formula.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autotune.errors import UserError
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts import Facts
from autotune.facts.machines import Machine
from autotune.job.job import Job
from autotune.plan.answer import Answer, answer_of
from autotune.plan.cache import PlanCache
from autotune.plan.children import trace_server
from autotune.plan.choices import Choice, leanness
from autotune.plan.device import device_facts, placed, planned_facts, planned_limit
from autotune.plan.draft import Draft
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import kept_on_device, planned_space
from autotune.plan.progress import Progress
from autotune.plan.shared_traces import SharedTraces
from autotune.plan.trace_choice import Effort
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace
from autotune.space.definition import SpaceDefinition

BEST = Effort(first=1, settled=True)
"""The effort for several devices: only the best is shown."""


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
