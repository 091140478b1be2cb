"""What a run expects of its candidates: every path is traced before the first probe."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import cached_property

from autotune.estimate.residual import Residual
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import estimates_of
from autotune.plan.ceilings import WORTH_MEASURING, measured_ceilings
from autotune.plan.children import servers
from autotune.plan.device import allocator_limit
from autotune.plan.engines import Asked, answered
from autotune.plan.progress import Told, nobody
from autotune.plan.variants import PathTask, path_tasks
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ProbeServer
from autotune.run.expectations import Expectations, expectations_from_plain, prior_of
from autotune.space.bind import SearchSpace

PATHS_A_SERVER = 4
"""A second process to fork from takes as long to start as this many traces."""


class Expecter:
    """Estimates of a run, kept in its folder: a run that goes on expects what it expected before.

    Args:
        limit: what a probe may take, in bytes.
        measuring: called before the device's rates are measured, which takes seconds and is done
            once a machine.
        told: hears how many candidates are estimated.
    """

    def __init__(
        self,
        job: Job,
        facts: Facts,
        space: SearchSpace,
        run: RunFolder,
        server: ProbeServer,
        limit: int,
        measuring: Callable[[], None],
        told: Told = nobody,
    ) -> None:
        self._job, self._facts, self._run, self._server = job, facts, run, server
        self._limit, self._measuring, self._told = limit, measuring, told
        self._worth = len(space.candidates) >= WORTH_MEASURING
        self._cache = PlanCache.of_user()
        self._tasks: list[PathTask] = path_tasks(
            job,
            facts,
            space.candidates,
            rows=run.rows,
            limit=allocator_limit(job, facts, limit),
            cache=self._cache.traces,
        )
        self.expectations = Expectations(estimates={}, prior=Residual(), limit_bytes=limit)
        stored = read_json(run.estimates)
        # What another version wrote may not be readable: then everything is traced again.
        with contextlib.suppress(KeyError, TypeError):
            self.expectations = expectations_from_plain(stored or {})

    def all(self) -> Expectations:
        """The expectations of every candidate; what was not traced before is traced now."""
        known = self.expectations.estimates
        missing = [t for t in self._tasks if any(one.key not in known for one in t.candidates)]
        if missing:
            self._trace(missing)
        return self.expectations

    @cached_property
    def _ceilings(self) -> Ceilings | None:
        known = self._cache.ceilings(self._facts.device.name)
        if known is not None or not self._worth:
            return known
        self._measuring()
        path = self._run.path / "estimates" / "ceilings"
        return measured_ceilings(self._facts, self._cache, self._server, path)

    def _trace(self, tasks: list[PathTask]) -> None:
        folder = self._run.path / "estimates"
        more = min(len(os.sched_getaffinity(0)), len(tasks) // PATHS_A_SERVER) - 1
        asked = Asked(job=self._job, facts=self._facts, limit=self._limit, ceilings=self._ceilings)
        with servers(folder, max(more, 0)) as started:
            replies = answered(tasks, asked, [self._server, *started], folder, self._told)
        found = estimates_of(
            tasks,
            replies,
            self._job,
            self._facts,
            self._limit,
            ceilings=self._ceilings,
        )
        known = self.expectations
        self.expectations = dataclasses.replace(
            known,
            estimates={**known.estimates, **found},
            prior=known.prior if known.estimates else prior_of(replies, self._facts),
        )
        write_json(self._run.estimates, self.expectations.plain())
