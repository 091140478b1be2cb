"""The one way from candidates to their estimates, for plans, runs and questions.

candidates -> variants -> traces in children, or formulas -> estimates
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings, ceilings_of_kind
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import KnownSpeeds, estimates_of
from autotune.plan.children import in_children
from autotune.plan.device import WORTH_MEASURING, allocator_limit, measured_ceilings
from autotune.plan.engines import Report, answered
from autotune.plan.exchange import with_server
from autotune.plan.grid import Trace
from autotune.plan.least_memory import ruled_out
from autotune.plan.progress import Progress
from autotune.plan.trace_choice import PROMISING, Effort
from autotune.plan.variants import VariantTask, variant_tasks
from autotune.process.child_server import ChildServer
from autotune.process.messages import ChildFolder
from autotune.space.knobs import Candidate
from autotune.space.trl_config import SettingsOfJob


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """The needs of a job's estimates, whoever asks for them. Another job: `dataclasses.replace`.

    Attributes:
        limit: bytes a process may take on the device.
        server: what traces are forked from.
        folder: for their files.
        rows: folder of the tokenized rows.
        ceilings: rates of the device; None: no speeds.
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.
        remembered: replies of an earlier plan that was the same: it asks for the same traces in the
            same order; None: it is a new one.
        trace: takes the place of traces of its own, where several plans share theirs.
        kept: all replies so far.
    """

    job: Job
    facts: Facts
    limit: int
    server: ChildServer
    folder: Path
    rows: Path
    ceilings: Ceilings | None = None
    effort: Effort = PROMISING
    cache: PlanCache = field(default_factory=PlanCache.of_user)
    progress: Progress = field(default_factory=Progress)
    remembered: Iterator[EstimateReply] | None = None
    trace: Trace | None = None
    kept: list[EstimateReply] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _speeds: KnownSpeeds = field(default_factory=dict)

    def with_ceilings(self, kind: DeviceKind | None, candidates: int) -> Self:
        """Return the estimator with the rates of the device: of its kind from a table, else
        measured once, where there are many candidates to rank."""
        if kind is not None:
            return dataclasses.replace(self, ceilings=ceilings_of_kind(kind))
        rates = self.cache.ceilings(self.facts.device.name)
        if rates is None and candidates >= WORTH_MEASURING:
            self.progress.measuring()
            folder = ChildFolder(path=self.folder / "ceilings")
            rates = measured_ceilings(self.facts, self.cache, self.server, folder)
        return dataclasses.replace(self, ceilings=rates)

    @cached_property
    def _settings(self) -> SettingsOfJob:
        return SettingsOfJob(self.job, self.facts)

    def ruled_out(self, candidates: Iterable[Candidate]) -> dict[str, Estimate]:
        """Return the estimates of those candidates that cannot fit whatever a trace would say, by
        key."""
        bounds: dict[str, Estimate] = {}
        for candidate in candidates:
            chosen = self._settings(candidate)
            bound = ruled_out(chosen, self.limit)
            if bound is not None:
                bounds[candidate.key] = with_server(bound, chosen)
        return bounds

    def tasks(self, candidates: Sequence[Candidate]) -> list[VariantTask]:
        """Return the traces that the candidates need, without those that are ruled out."""
        bounds = self.ruled_out(candidates)
        return variant_tasks(
            [self._settings(one) for one in candidates if one.key not in bounds],
            rows=self.rows,
            limit=allocator_limit(self.job, self.facts, self.limit),
            cache=self.cache.traces,
        )

    def replies(
        self, tasks: Sequence[VariantTask], report: Report | None = None
    ) -> list[EstimateReply]:
        """Return the replies to the tasks; `report` receives each as it comes."""
        if not tasks:
            return []
        with contextlib.suppress(OSError):  # full or read-only: nothing is kept
            self.cache.make()
        if self.remembered is not None:
            replies = list(itertools.islice(self.remembered, len(tasks)))
            if report is not None:
                report(dict(enumerate(replies)))
            return replies
        folder = self.folder / f"{next(self._numbers):03d}"
        replies = answered(
            tasks,
            self.effort,
            lambda task, reply: self.combined([task], [reply]),
            self.trace or in_children(self.server, folder, self.progress),
            report,
            with_speeds=self.ceilings is not None,
        )
        self.kept.extend(replies)
        return replies

    def combined(
        self, tasks: Sequence[VariantTask], replies: Sequence[EstimateReply]
    ) -> dict[str, Estimate]:
        """Return the estimate of each candidate of the tasks, by its key."""
        return estimates_of(tasks, replies, self.limit, ceilings=self.ceilings, speeds=self._speeds)

    def estimates(self, candidates: Sequence[Candidate]) -> dict[str, Estimate]:
        """Return the estimate of each candidate, by its key."""
        tasks = self.tasks(candidates)
        return self.combined(tasks, self.replies(tasks)) | self.ruled_out(candidates)

    def estimates_together(
        self, groups: Sequence[tuple[Self, Sequence[Candidate]]]
    ) -> list[dict[str, Estimate]]:
        """Return the estimates of groups of candidates, by their keys, each with an estimator of
        its own.

        All traces are made beside each other. But where engines are to be traced, an effort is for
        the first ones of a group: then it is one group after the other.
        """
        tasks = [estimator.tasks(candidates) for estimator, candidates in groups]
        flat = [task for of_group in tasks for task in of_group]
        if any(task.engine for task in flat) and self.effort.first != 0:
            return [estimator.estimates(candidates) for estimator, candidates in groups]
        replies = iter(self.replies(flat))
        return [
            estimator.combined(of_group, list(itertools.islice(replies, len(of_group))))
            | estimator.ruled_out(candidates)
            for (estimator, candidates), of_group in zip(groups, tasks, strict=True)
        ]
