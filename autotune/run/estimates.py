"""What a run expects of its candidates: every variant is traced before the first probe."""

import contextlib
import dataclasses

from autotune.estimate.residual import Residual
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.ceilings import WORTH_MEASURING, ceilings_of
from autotune.plan.children import Servers
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.run.expectations import Expectations, expectations_from_plain, prior_of
from autotune.space.bind import SearchSpace


def expected(
    job: Job,
    facts: Facts,
    space: SearchSpace,
    run: RunFolder,
    server: ChildServer,
    limit: int,
    progress: Progress,
) -> Expectations:
    """The expectations of every candidate, kept in the run's folder: a run that goes on expects
    what it expected before, and only what was not traced then is traced now.

    Args:
        limit: what a probe may take, in bytes.
    """
    stored = stored_expectations(run, limit)
    folder, cache = run.path / "estimates", PlanCache.of_user()
    with Servers(folder, server) as servers:
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=limit,
            servers=servers,
            folder=folder,
            rows=run.rows,
            cache=cache,
            progress=progress,
        )
        missing = [
            task
            for task in estimator.tasks(space.candidates)
            if any(member.candidate.key not in stored.estimates for member in task.members)
        ]
        if not missing:
            return stored
        progress.estimating(len(space.candidates))
        worth_measuring = len(space.candidates) >= WORTH_MEASURING
        ceilings = ceilings_of(
            facts,
            None,
            cache,
            servers,
            folder / "ceilings",
            progress,
            worth_measuring=worth_measuring,
        )
        estimator = dataclasses.replace(estimator, ceilings=ceilings)
        replies = estimator.replies(missing)
    expectations = dataclasses.replace(
        stored,
        estimates={**stored.estimates, **estimator.combined(missing, replies)},
        prior=stored.prior if stored.estimates else prior_of(replies, facts, job.devices.total),
    )
    write_json(run.estimates, expectations.plain())
    return expectations


def stored_expectations(run: RunFolder, limit: int) -> Expectations:
    """What the run's folder has. What another version wrote may not be readable: then it is
    nothing, and everything is traced again.

    Args:
        limit: what a probe may take, in bytes.
    """
    data = read_json(run.estimates)
    with contextlib.suppress(KeyError, TypeError):
        return expectations_from_plain(data or {})
    return Expectations(estimates={}, prior=Residual(), limit_bytes=limit)
