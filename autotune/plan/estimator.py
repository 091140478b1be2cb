"""The one way from candidates to their estimates, for plans, runs and questions.

candidates -> variants -> traces in children, or formulas -> estimates
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import estimates_of
from autotune.plan.children import Servers
from autotune.plan.device import allocator_limit
from autotune.plan.engines import PROMISING, Effort, TraceBudget, answered
from autotune.plan.known import Known
from autotune.plan.memory import Memory
from autotune.plan.progress import Progress
from autotune.plan.variants import VariantTask, variant_tasks
from autotune.space.knobs import Candidate


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """What estimates of a job need, whoever asks for them. Another job: `dataclasses.replace`.

    Attributes:
        limit: bytes a process may take on the device.
        servers: where traces run.
        folder: for their files.
        rows: folder of the tokenized rows.
        ceilings: rates of the device; None: no speeds.
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.
        memory: of all replies so far, or of those of an earlier plan that was the same.
    """

    job: Job
    facts: Facts
    limit: int
    servers: Servers
    folder: Path
    rows: Path
    ceilings: Ceilings | None = None
    effort: Effort = PROMISING
    cache: PlanCache = field(default_factory=PlanCache.of_user)
    progress: Progress = field(default_factory=Progress)
    memory: Memory = field(default_factory=Memory)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def tasks(self, candidates: Iterable[Candidate]) -> list[VariantTask]:
        """What has to be traced for the candidates."""
        return variant_tasks(
            self.job,
            self.facts,
            candidates,
            rows=self.rows,
            limit=allocator_limit(self.job, self.facts, self.limit),
            cache=self.cache.traces,
        )

    def replies(
        self, tasks: Sequence[VariantTask], known: Known | None = None
    ) -> list[EstimateReply]:
        """What the traces came to; `known` hears of each as it comes."""
        known = known or Known()
        replies = self.memory.next(len(tasks))
        if replies is not None:
            known.add(dict(enumerate(replies)))
            return replies
        budget = TraceBudget(limit=self.limit, ceilings=self.ceilings, effort=self.effort)
        folder = self.folder / f"{next(self._numbers):03d}"
        return self.memory.keep(answered(tasks, budget, self.servers, folder, self.progress, known))

    def combined(
        self, tasks: Sequence[VariantTask], replies: Sequence[EstimateReply]
    ) -> dict[str, Estimate]:
        """The estimate of each candidate of the tasks, by its key."""
        return estimates_of(tasks, replies, self.limit, ceilings=self.ceilings)

    def estimates_of_jobs(self, pairs: Sequence[tuple[Job, Candidate]]) -> list[Estimate]:
        """The estimate of one candidate of each of several jobs, traced beside each other."""
        estimators = [dataclasses.replace(self, job=job) for job, _ in pairs]
        tasks = [e.tasks([one])[0] for e, (_, one) in zip(estimators, pairs, strict=True)]
        replies = self.replies(tasks)
        return [
            e.combined([task], [reply])[one.key]
            for e, task, reply, (_, one) in zip(estimators, tasks, replies, pairs, strict=True)
        ]

    def estimates(self, candidates: Iterable[Candidate]) -> dict[str, Estimate]:
        """The estimate of each candidate, by its key."""
        tasks = self.tasks(candidates)
        return self.combined(tasks, self.replies(tasks))
