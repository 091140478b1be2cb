"""The changes that would make a job fit: asked for by the user, and by a run in which nothing fits
(`ways.py`)."""

from collections.abc import Collection
from pathlib import Path

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.children import trace_server
from autotune.plan.device import placed, planned_facts, planned_limit
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import planned_space
from autotune.plan.progress import Progress
from autotune.plan.questions.way import Advice
from autotune.plan.questions.ways import FASTEST, Advisor
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace
from autotune.space.definition import SpaceDefinition


def advise(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    assume: bool = True,
    progress: Progress | None = None,
) -> Advice:
    """Look for the shortest lists of changes that make a job fit.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    job, kind = placed(job, device)
    run = RunFolder(path=scratch)
    with trace_server(scratch, elsewhere=kind is not None) as server:
        facts = planned_facts(job, run, server, kind, assume=assume)
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=planned_limit(job, facts),
            server=server,
            folder=scratch / "advice",
            rows=run.rows,
            effort=FASTEST,
            progress=progress or Progress(),
        )
        space = planned_space(definition, job, facts)
        return Advisor(estimator, kind).advice(space)


def advise_in_run(
    job: Job,
    facts: Facts,
    limit: int,
    space: SearchSpace,
    run: RunFolder,
    server: ChildServer,
    tried: Collection[str],
) -> Advice:
    """Return the shortest lists of changes for a job that, by its probes, does not fit in `limit`
    bytes.

    Args:
        tried: single changes, by their texts, that probes found not to be enough.
    """
    folder = run.path / "advice"
    estimator = Estimator(
        job=job,
        facts=facts,
        limit=limit,
        server=server,
        folder=folder,
        rows=run.rows,
        effort=FASTEST,
    )
    return Advisor(estimator, tried=tried).advice(space, seen_to_fail=True, briefly=True)
