"""The smallest machine that holds a job which no change brings onto its device."""

from collections.abc import Iterator, Sequence

from autotune.errors import UserError
from autotune.facts import Facts
from autotune.facts.device_kinds import common_kinds
from autotune.facts.machines import Machine
from autotune.job.job import Job
from autotune.plan.device import device_facts
from autotune.plan.estimator import Estimator
from autotune.plan.least_memory import least_bytes
from autotune.plan.machines import plans_on
from autotune.plan.narrowing import planned_space
from autotune.plan.questions.changes import Holder
from autotune.plan.shared_traces import SharedTraces
from autotune.process.run_folder import RunFolder
from autotune.space.definition import SpaceDefinition
from autotune.space.memory_order import expected_leanness
from autotune.space.trl_config import settings

COUNTS = (1, 2, 4, 8)
FOR_THE_STATES = 0.75
"""Share of a machine's memory that weights, gradients and moments may take, where it is tried."""
MOST_TRIED = 3
"""Machines that are planned until one holds the job."""


def kept_holder(
    job: Job,
    definition: SpaceDefinition,
    estimator: Estimator,
    run: RunFolder,
    key: str | None,
    *,
    assume: bool,
) -> Holder | None:
    """Return the smallest machine that holds a job: as it was found before, or found now.

    Args:
        key: of the job's plan; None: nothing is kept.
    """
    cache = estimator.cache
    kept: list[Holder] | None = None if key is None else cache.rows(key, list[Holder])
    if kept is None:
        holder = smallest_machine(job, definition, estimator, run, assume=assume)
        kept = [] if holder is None else [holder]
        if key is not None:
            cache.keep_rows(key, kept, list[Holder])
    return kept[0] if kept else None


def smallest_machine(
    job: Job, definition: SpaceDefinition, estimator: Estimator, run: RunFolder, *, assume: bool
) -> Holder | None:
    """Return the machine with least memory on which the job is safe; None: of the few
    that were tried none is.

    Args:
        estimator: of the job where it does not fit.
    """
    facts, server = estimator.facts, estimator.server
    traces = SharedTraces(server, run.path / "smallest", estimator.progress)
    least, tried = _least_bytes(job, definition, facts), 0
    for machine in _machines(job):
        limit = device_facts(facts, machine.kind, assume=assume).device.free_bytes
        if tried == MOST_TRIED or least is None:
            return None
        if least <= FOR_THE_STATES * (machine.count or 1) * limit:
            tried += 1
            (plan,) = plans_on(
                job, definition, facts, [machine], traces, server, run, assume=assume
            )
            if plan.first is not None and plan.first.safe:
                estimate = plan.first.estimate
                return Holder(
                    machine=machine.name,
                    peak_memory_bytes=estimate.peak_memory_bytes,
                    limit_bytes=plan.limit_bytes,
                    tokens_per_s=estimate.tokens_per_s,
                )
    return None


def _least_bytes(job: Job, definition: SpaceDefinition, facts: Facts) -> int | None:
    """Return the bytes of weights, gradients and moments of the leanest candidate, over all
    devices; None: the job has no space on one device."""
    one = job.model_copy(update={"devices": job.devices.model_copy(update={"count": 1})})
    try:
        lean = min(planned_space(definition, one, facts).candidates, key=expected_leanness)
    except UserError:
        return None
    return least_bytes(settings(one, facts, lean))


def _machines(job: Job) -> Iterator[Machine]:
    """Yield machines, those with least memory first; of as much, the fewest devices."""
    batch = job.global_batch_size
    machines: Sequence[Machine] = [
        Machine(kind=kind, count=count)
        for kind in common_kinds()
        for count in COUNTS
        if isinstance(batch, int) and batch % count == 0
    ]

    def size(machine: Machine) -> tuple[int, int]:
        count = machine.count or 1
        return count * machine.kind.memory_bytes, count

    yield from sorted(machines, key=size)
