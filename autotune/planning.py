"""What every candidate of a space is expected to take, before anything runs on the device.

survey -> bind the space -> paths -> traces in children -> estimates
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.answering import FIRST, Asked, answered
from autotune.candidate_estimates import estimates_of
from autotune.counting import Told, nobody
from autotune.device_ceilings import WORTH_MEASURING, known_ceilings
from autotune.estimate.ceilings import Ceilings
from autotune.estimate.estimates import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job import Job
from autotune.path_tasks import PathTask, path_tasks
from autotune.placing import allocator_limit, device_facts, placed, planned_limit
from autotune.plan_cache import PlanCache
from autotune.run_folder import RunFolder
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import not_installed
from autotune.space.spaces import SearchSpace, bind
from autotune.surveying import survey
from autotune.traced_paths import servers


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
    every_engine: bool = False,
    first: int = FIRST,
    told: Told = nobody,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        only_default: the default candidate alone, pinned knobs as pinned.
        every_engine: whether DeepSpeed and FSDP are traced for all candidates that need them, and
            not for the most promising ones only, where there are many.
        first: for how many of those.
        told: hears how many candidates are estimated.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    began = time.monotonic()
    job, kind = placed(job, device)
    planning = _Planning(
        job=job,
        definition=definition,
        run=RunFolder(path=scratch),
        kind=kind,
        only_default=only_default,
        every_engine=every_engine,
        first=first,
        told=told,
    )
    facts, replies, cached = planning.replies()
    space, limit = planning.space(facts), planned_limit(job, facts)
    tasks = planning.tasks(facts, None)
    ceilings = planning.ceilings(facts)
    return Plan(
        facts=facts,
        space=space,
        estimates=estimates_of(tasks, replies, job, facts, limit, ceilings=ceilings),
        limit_bytes=limit,
        devices=job.devices.total,
        nodes=job.devices.nodes,
        seconds=round(time.monotonic() - began, 3),
        cached=cached,
        not_installed=not_installed(job, facts),
        host_limit_bytes=host_limit(job, facts.device.kind, facts.host),
        by_formula=sum(
            len(task.candidates)
            for task, reply in zip(tasks, replies, strict=True)
            if reply.by_formula
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Planning:
    """What a plan is asked for, and its steps."""

    job: Job
    definition: SpaceDefinition
    run: RunFolder
    kind: DeviceKind | None
    only_default: bool
    every_engine: bool
    first: int
    told: Told
    _known: dict[str, Ceilings | None] = field(default_factory=dict)

    def space(self, facts: Facts) -> SearchSpace:
        """The candidates to estimate."""
        space = bind(self.definition, self.job, facts)
        if not self.only_default:
            return space
        return dataclasses.replace(space, candidates=(space.default(),))

    def tasks(self, facts: Facts, traces: Path | None) -> list[PathTask]:
        """What to ask children; `traces`: where they keep them."""
        limit = allocator_limit(self.job, facts, planned_limit(self.job, facts))
        candidates = self.space(facts).candidates
        return path_tasks(
            self.job, facts, candidates, rows=self.run.rows, limit=limit, cache=traces
        )

    def ceilings(self, facts: Facts) -> Ceilings | None:
        """The rates of the device; None: not worth measuring."""
        if self.kind is None and len(self.space(facts).candidates) < WORTH_MEASURING:
            return None
        name = facts.device.name
        if name not in self._known:
            cache = PlanCache.of_user()
            self._known[name] = known_ceilings(facts, self.kind, cache, self.run.path)
        return self._known[name]

    def replies(self) -> tuple[Facts, list[EstimateReply], bool]:
        """Facts and replies, and whether a plan that was made before has them."""
        cache = PlanCache.of_user()
        asked = f"{self.kind!r}, {'the default' if self.only_default else 'all'}"
        asked += ", every engine" if self.every_engine else f", the first {self.first}"
        key = cache.key(self.job, self.definition, None if self.kind is None else asked)
        stored = None if key is None else cache.read(key)
        if stored is not None:
            return *stored, True
        facts, replies = self._made(cache)
        if key is not None and not any(one.problem or one.engine_problem for one in replies):
            cache.write(key, facts, replies)
        return facts, replies, False

    def _made(self, cache: PlanCache) -> tuple[Facts, list[EstimateReply]]:
        with servers(self.run.path, len(os.sched_getaffinity(0))) as started:
            facts = device_facts(survey(self.job, self.run, started[0]), self.kind)
            asked = Asked(
                job=self.job,
                facts=facts,
                limit=planned_limit(self.job, facts),
                ceilings=self.ceilings(facts),
                every_engine=self.every_engine,
                first=self.first,
            )
            tasks = self.tasks(facts, cache.traces)
            return facts, answered(tasks, asked, started, self.run.path / "traces", self.told)
