"""What a run expects: a path is traced when a candidate on it is first asked for."""

import contextlib
import dataclasses
from collections.abc import Callable
from functools import cached_property

from autotune.estimate.ceilings import Ceilings
from autotune.estimate.memory import Residual
from autotune.expectations import Expectations, estimates_of, expectations_from_plain, prior_of
from autotune.facts import Facts
from autotune.job import Job
from autotune.path_tasks import PathTask, path_tasks
from autotune.placing import allocator_limit
from autotune.plan_cache import PlanCache
from autotune.planning import WORTH_MEASURING, measured_ceilings, traced_in_children
from autotune.probe.protocol import read_json, write_json
from autotune.probe.runner import ProbeServer
from autotune.run_folder import RunFolder
from autotune.space.knobs import Candidate
from autotune.space.spaces import SearchSpace


class Expecter:
    """Estimates of a run, kept in its folder: a run that goes on expects what it expected before.

    Args:
        limit: what a probe may take, in bytes.
        measuring: called before the device's rates are measured, which takes seconds and is done
            once a machine.
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
    ) -> None:
        self._job, self._facts, self._run, self._server = job, facts, run, server
        self._limit, self._measuring = limit, measuring
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

    def of(self, candidate: Candidate) -> Expectations:
        """The expectations, those of this candidate's path among them."""
        if candidate.key not in self.expectations.estimates:
            number = next(
                n
                for n, task in enumerate(self._tasks)
                if any(one.key == candidate.key for one in task.candidates)
            )
            self._trace(number)
        return self.expectations

    @cached_property
    def _ceilings(self) -> Ceilings | None:
        known = self._cache.ceilings(self._facts.device.name)
        if known is not None or not self._worth:
            return known
        self._measuring()
        path = self._run.path / "estimates" / "ceilings"
        return measured_ceilings(self._facts, self._cache, self._server, path)

    def _trace(self, number: int) -> None:
        tasks = [self._tasks[number]]
        folder = self._run.path / "estimates" / f"{number:03d}"
        replies = traced_in_children(tasks, [self._server], folder)
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
