"""What every candidate of a space is expected to take, before anything runs on the device.

survey -> bind the space -> paths -> traces in children -> estimates
"""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import estimates_of
from autotune.plan.ceilings import WORTH_MEASURING, known_ceilings
from autotune.plan.children import servers
from autotune.plan.device import allocator_limit, device_facts, placed, planned_limit
from autotune.plan.engines import PROMISING, Asked, Effort, answered
from autotune.plan.progress import Told, nobody
from autotune.plan.variants import PathTask, path_tasks
from autotune.probe.survey import survey
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import not_installed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space with what is expected of each of its candidates.

    Attributes:
        limit_bytes: what a process may take on the device.
        host_limit_bytes: what all processes may take of the host; None: nothing is known of that.
        devices: how many train together, on `nodes` machines.
        seconds: wall time of making the plan.
        cached: whether all of it was remembered.
        by_formula: how many of the candidates are spread by an engine that was not traced for them.
        not_installed: what the job needs to be run that is not here, as a sentence; None: nothing.
    """

    facts: Facts
    space: SearchSpace
    estimates: Mapping[str, Estimate]
    limit_bytes: int
    devices: int
    seconds: float
    cached: bool
    not_installed: str | None = None
    nodes: int = 1
    host_limit_bytes: int | None = None
    by_formula: int = 0

    def ranked(self) -> list[tuple[Candidate, Estimate]]:
        """Candidates that fit first; the fastest first where speed is known, else the leanest."""

        def order(pair: tuple[Candidate, Estimate]) -> tuple[Any, ...]:
            estimate = pair[1]
            speed = -(estimate.tokens_per_s or 0.0)
            return not estimate.fits, speed, estimate.peak_memory_bytes

        return sorted(((one, self.estimates[one.key]) for one in self.space.candidates), key=order)


def plan(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    only_default: bool = False,
    effort: Effort = PROMISING,
    told: Told = nobody,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        only_default: the default candidate alone, pinned knobs as pinned.
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.
        told: hears how many candidates are estimated.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    job, kind = placed(job, device)
    planning = _Planning(
        job=job,
        definition=definition,
        run=RunFolder(path=scratch),
        kind=kind,
        only_default=only_default,
        effort=effort,
        told=told,
    )
    return planning.plan()


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """What follows from the facts: the candidates, what to ask of them, the device's limit and
    rates (None: not worth measuring)."""

    facts: Facts
    space: SearchSpace
    tasks: list[PathTask]
    limit: int
    ceilings: Ceilings | None


@dataclass(frozen=True, kw_only=True)
class _Planning:
    """What a plan is asked for, and its steps."""

    job: Job
    definition: SpaceDefinition
    run: RunFolder
    kind: DeviceKind | None
    only_default: bool
    effort: Effort
    told: Told

    def plan(self) -> Plan:
        """As it was made before, or made now."""
        began = time.monotonic()
        cache = PlanCache.of_user()
        asked = f"{self.kind!r}, {'the default' if self.only_default else 'all'}, {self.effort!r}"
        key = cache.key(self.job, self.definition, None if self.kind is None else asked)
        stored = None if key is None else cache.read(key)
        if stored is not None:
            bound, replies = self._bound(stored[0], cache), stored[1]
        else:
            bound, replies = self._made(cache)
            if key is not None and not any(one.problem or one.engine_problem for one in replies):
                cache.write(key, bound.facts, replies)
        made = self._estimated(bound, replies)
        seconds = round(time.monotonic() - began, 3)
        return dataclasses.replace(made, seconds=seconds, cached=stored is not None)

    def _bound(self, facts: Facts, cache: PlanCache) -> _Bound:
        space = bind(self.definition, self.job, facts)
        if self.only_default:
            space = dataclasses.replace(space, candidates=(space.default(),))
        limit = planned_limit(self.job, facts)
        tasks = path_tasks(
            self.job,
            facts,
            space.candidates,
            rows=self.run.rows,
            limit=allocator_limit(self.job, facts, limit),
            cache=cache.traces,
        )
        worth = self.kind is not None or len(space.candidates) >= WORTH_MEASURING
        ceilings = known_ceilings(facts, self.kind, cache, self.run.path) if worth else None
        return _Bound(facts=facts, space=space, tasks=tasks, limit=limit, ceilings=ceilings)

    def _made(self, cache: PlanCache) -> tuple[_Bound, list[EstimateReply]]:
        with servers(self.run.path, len(os.sched_getaffinity(0))) as started:
            facts = device_facts(survey(self.job, self.run, started[0]), self.kind)
            bound = self._bound(facts, cache)
            asked = Asked(
                job=self.job,
                facts=facts,
                limit=bound.limit,
                ceilings=bound.ceilings,
                effort=self.effort,
            )
            folder = self.run.path / "traces"
            return bound, answered(bound.tasks, asked, started, folder, self.told)

    def _estimated(self, bound: _Bound, replies: Sequence[EstimateReply]) -> Plan:
        job, facts, tasks, limit = self.job, bound.facts, bound.tasks, bound.limit
        by_formula = (
            len(task.candidates)
            for task, reply in zip(tasks, replies, strict=True)
            if reply.by_formula
        )
        return Plan(
            facts=facts,
            space=bound.space,
            estimates=estimates_of(tasks, replies, job, facts, limit, ceilings=bound.ceilings),
            limit_bytes=limit,
            devices=job.devices.total,
            nodes=job.devices.nodes,
            seconds=0.0,
            cached=False,
            not_installed=not_installed(job, facts),
            host_limit_bytes=host_limit(job, facts.device.kind, facts.host),
            by_formula=sum(by_formula),
        )
