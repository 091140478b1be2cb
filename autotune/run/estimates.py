"""What a run expects of its candidates: every variant is traced before the first probe."""

import contextlib
import dataclasses

from autotune.estimate.residual import Residual
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import TYPICAL_PROCESS
from autotune.plan.ceilings import WORTH_MEASURING, ceilings_of
from autotune.plan.children import untraced
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.run.expectations import Expectations, expectations_from_plain, prior_of
from autotune.space.bind import SearchSpace
from autotune.value_types import NONSENSE, checked


def expected(
    job: Job,
    facts: Facts,
    space: SearchSpace,
    run: RunFolder,
    server: ChildServer,
    limit: int,
    progress: Progress,
) -> Expectations:
    """Return the expectations of every candidate, kept in the run's folder: a run that goes on
    expects what it expected before, and only what was not traced then is traced now.

    Args:
        limit: what a probe may take, in bytes.
    """
    stored = _stored(run, limit)
    folder = run.path / "estimates"
    estimator = _estimator(job, facts, run, server, limit, progress)
    missing = [
        task
        for task in estimator.tasks(space.candidates)
        if any(member.candidate.key not in stored.estimates for member in task.members)
    ]
    bounds = estimator.ruled_out(space.candidates)
    if not missing and bounds.keys() <= stored.estimates.keys():
        return stored
    progress.estimating(len(space.candidates))
    ceilings = ceilings_of(
        facts,
        None,
        estimator.cache,
        server,
        folder / "ceilings",
        progress,
        worth_measuring=len(space.candidates) >= WORTH_MEASURING,
    )
    estimator = dataclasses.replace(estimator, ceilings=ceilings)
    replies = estimator.replies(missing)
    expectations = dataclasses.replace(
        stored,
        estimates={**bounds, **stored.estimates, **estimator.combined(missing, replies)},
        prior=stored.prior if stored.estimates else prior_of(replies, facts, job.devices.total),
    )
    write_json(run.estimates, expectations.plain())
    return expectations


def by_formula(
    job: Job, facts: Facts, space: SearchSpace, run: RunFolder, server: ChildServer, limit: int
) -> Expectations:
    """Return what the closed form expects of candidates that there was no time to trace: memory
    alone. It is not kept, so that a run that goes on traces them.

    Args:
        limit: what a probe may take, in bytes.
    """
    stored = _stored(run, limit)
    estimator = _estimator(job, facts, run, server, limit, Progress())
    tasks = estimator.tasks(space.candidates)
    reply = untraced("the total budget had no time to trace it")
    replies = [dataclasses.replace(reply, process_bytes=TYPICAL_PROCESS)] * len(tasks)
    estimates = estimator.combined(tasks, replies) | estimator.ruled_out(space.candidates)
    prior = stored.prior if stored.estimates else prior_of(replies, facts, job.devices.total)
    return dataclasses.replace(stored, estimates={**estimates, **stored.estimates}, prior=prior)


def _estimator(
    job: Job, facts: Facts, run: RunFolder, server: ChildServer, limit: int, progress: Progress
) -> Estimator:
    return Estimator(
        job=job,
        facts=facts,
        limit=limit,
        server=server,
        folder=run.path / "estimates",
        rows=run.rows,
        cache=PlanCache.of_user(),
        progress=progress,
    )


def _stored(run: RunFolder, limit: int) -> Expectations:
    """Return what the run's folder has. What another version wrote, or was damaged, may not be
    readable: then it is nothing, and everything is traced again."""
    data = read_json(run.estimates)
    with contextlib.suppress(*NONSENSE):
        return checked(expectations_from_plain(data or {}), Expectations)
    return Expectations(estimates={}, prior=Residual(), limit_bytes=limit)
