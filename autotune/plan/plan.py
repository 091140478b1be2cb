"""What every candidate of a space is expected to take, before anything runs on the device.

survey -> bind the space -> variants -> traces in children -> estimates
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.ceilings import WORTH_MEASURING, ceilings_of
from autotune.plan.children import Servers
from autotune.plan.device import device_facts, placed, planned_limit
from autotune.plan.engines import PROMISING, Effort
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.plan.variants import VariantTask
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

        pairs = ((candidate, self.estimates[candidate.key]) for candidate in self.space.candidates)
        return sorted(pairs, key=order)


def plan(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    only_default: bool = False,
    effort: Effort = PROMISING,
    progress: Progress | None = None,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        only_default: the default candidate alone, pinned knobs as pinned.
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    began = time.monotonic()
    job, kind = placed(job, device)
    cache = PlanCache.of_user()
    place = f"{kind!r}, {'the default' if only_default else 'all'}, {effort!r}"
    key = cache.key(job, definition, None if kind is None else place)
    stored = None if key is None else cache.read(key)
    run = RunFolder(path=scratch)
    with Servers(scratch) as servers:
        facts = stored[0] if stored else device_facts(survey(job, run, servers.first), kind)
        space = bind(definition, job, facts)
        if only_default:
            space = dataclasses.replace(space, candidates=(space.default(),))
        estimator = _estimator(job, facts, space, run, servers, kind, progress or Progress())
        estimator = dataclasses.replace(estimator, effort=effort, cache=cache)
        tasks = estimator.tasks(space.candidates)
        replies = stored[1] if stored else estimator.replies(tasks)
    if stored is None and key is not None and not any(map(_failed, replies)):
        cache.write(key, facts, replies)
    return Plan(
        facts=facts,
        space=space,
        estimates=estimator.combined(tasks, replies),
        limit_bytes=estimator.limit,
        devices=job.devices.total,
        nodes=job.devices.nodes,
        seconds=round(time.monotonic() - began, 3),
        cached=stored is not None,
        not_installed=not_installed(job, facts),
        host_limit_bytes=host_limit(job, facts.device.kind, facts.host),
        by_formula=_by_formula(tasks, replies),
    )


def _estimator(
    job: Job,
    facts: Facts,
    space: SearchSpace,
    run: RunFolder,
    servers: Servers,
    kind: DeviceKind | None,
    progress: Progress,
) -> Estimator:
    """What estimates candidates; with speeds where they are tabled, or worth to be measured."""
    ceilings = ceilings_of(
        facts,
        kind,
        PlanCache.of_user(),
        servers,
        run.path / "ceilings",
        progress,
        worth_measuring=len(space.candidates) >= WORTH_MEASURING,
    )
    return Estimator(
        job=job,
        facts=facts,
        limit=planned_limit(job, facts),
        servers=servers,
        folder=run.path / "traces",
        rows=run.rows,
        ceilings=ceilings,
        progress=progress,
    )


def _failed(reply: EstimateReply) -> bool:
    return bool(reply.problem or reply.engine_problem)


def _by_formula(tasks: Sequence[VariantTask], replies: Sequence[EstimateReply]) -> int:
    pairs = zip(tasks, replies, strict=True)
    return sum(len(task.members) for task, reply in pairs if reply.by_formula)
