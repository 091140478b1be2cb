"""What would make a job fit: the shortest lists of changes, each with its price in speed.

Estimates only. Changes are those of `changes.py`, alone first, then two and three together; a list
is not made longer once it fits. Whether a job fits is asked of its leanest candidate; its speed is
that of the fastest that fits, among those that differ in what decides about memory.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.plan.ceilings import ceilings_of
from autotune.plan.children import Servers
from autotune.plan.device import placed, planned_facts, planned_limit
from autotune.plan.engines import Effort
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import narrowed
from autotune.plan.progress import Progress
from autotune.plan.questions.changes import Change, offloading, one_more_device, single_changes
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.packages import packages_to_install
from autotune.space.sharding.sharding import OPTIMIZER_OFFLOAD

MOST_CHANGES, MOST_WITH_OFFLOADING = 3, 2
FASTEST = Effort(first=2)
"""Only the fastest that fits is shown; two are traced beside each other."""
LITTLE_TO_MEMORY = (
    *("attn_implementation", "optim", "dataloader_num_workers", "expandable_segments"),
    *("torch_compile", "train_sampling_strategy"),
)
"""Knobs that stay as the leanest candidate has them while a way out is looked for."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A list of changes after which the job fits.

    Attributes:
        candidate: the fastest that fits then.
        packages: what it needs that is not on this machine.
        speed: its tokens/s over those of the job as it is, if that fitted; None: not known.
    """

    changes: tuple[Change, ...]
    candidate: Candidate
    estimate: Estimate
    speed: float | None
    packages: tuple[str, ...] = ()

    @property
    def learns_the_same(self) -> bool:
        """Whether no change touches what is learned."""
        return all(change.kind == "speed" for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The ways out.

    Attributes:
        fits: whether the job fits as it is; then there is nothing to change.
        nearest: its leanest candidate.
        tried: lists of changes that were looked at.
    """

    fits: bool
    nearest: Candidate
    estimate: Estimate
    limit_bytes: int
    device: str
    ways: tuple[Way, ...]
    tried: int


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
    with Servers(scratch) as servers:
        facts = planned_facts(job, run, servers.first, kind, assume=assume)
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=planned_limit(job, facts),
            servers=servers,
            folder=scratch / "advice",
            rows=run.rows,
            effort=FASTEST,
            progress=progress or Progress(),
        )
        space = bind(narrowed(definition, job, facts), job, facts)
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
    """The same for a job of which probes found that it does not fit in `limit` bytes.

    Args:
        tried: single changes, by their texts, that probes found not to be enough.
    """
    folder = run.path / "advice"
    with Servers(folder, server) as servers:
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=limit,
            servers=servers,
            folder=folder,
            rows=run.rows,
            effort=FASTEST,
        )
        return Advisor(estimator, tried=tried).advice(space, seen_to_fail=True)


class Advisor:
    """Looks for ways out.

    Args:
        estimator: of the job as it is.
        kind: of device that is planned for; None: the one that is here.
        tried: single changes, by their texts, that probes found not to be enough.
    """

    def __init__(
        self, estimator: Estimator, kind: DeviceKind | None = None, tried: Collection[str] = ()
    ) -> None:
        self._estimator, self._kind, self._tried = estimator, kind, tried
        self._job, self._facts = estimator.job, estimator.facts
        self._lists = 0

    @cached_property
    def _ceilings(self) -> Ceilings | None:
        estimator = self._estimator
        folder = estimator.folder / "ceilings"
        return ceilings_of(
            estimator.facts,
            self._kind,
            estimator.cache,
            estimator.servers,
            folder,
            estimator.progress,
        )

    def advice(self, space: SearchSpace, *, seen_to_fail: bool = False) -> Advice:
        """The ways out of a job whose space this is."""
        nearest = leanest(space)
        estimate = self._estimates(self._job, [nearest])[nearest.key]
        ways: tuple[Way, ...] = ()
        if seen_to_fail or not estimate.fits:
            ways = tuple(self._ways(nearest, self._speed_if_it_fitted(space)))
        return Advice(
            fits=estimate.fits and not seen_to_fail,
            nearest=nearest,
            estimate=estimate,
            limit_bytes=self._estimator.limit,
            device=self._facts.device.name,
            ways=ways,
            tried=self._lists,
        )

    def _ways(self, nearest: Candidate, speed: float | None) -> Iterator[Way]:
        """Breadth first: what needs fewest changes comes first."""
        front: list[tuple[tuple[Change, ...], Job, Candidate]] = [((), self._job, nearest)]
        looked_at: set[frozenset[str]] = set()
        fitting: list[frozenset[str]] = []
        for _ in range(MOST_CHANGES):
            following = []
            for changes, job, lean in front:
                changed = {change.field for change in changes}
                for change in self._changes(job, lean):
                    if change.field in changed or _too_long({*changed, change.field}):
                        continue
                    texts = frozenset(c.text for c in (*changes, change))
                    if texts in looked_at or any(shorter <= texts for shorter in fitting):
                        continue
                    looked_at.add(texts)
                    space = self._space(change.job)
                    if space is None:
                        continue
                    leaner = leanest(space)
                    is_probed = not changes and change.text in self._tried
                    if is_probed or not self._fits(change.job, leaner):
                        following.append(((*changes, change), change.job, leaner))
                        continue
                    fitting.append(texts)
                    yield self._way((*changes, change), change.job, space, speed)
            front = following

    def _changes(self, job: Job, nearest: Candidate) -> Iterator[Change]:
        yield from offloading(job, self._facts.device.kind)
        yield from single_changes(job, nearest)
        if self._kind is not None:  # of the devices that are here one is tuned for
            yield from one_more_device(job)

    def _way(
        self, changes: tuple[Change, ...], job: Job, space: SearchSpace, speed: float | None
    ) -> Way:
        candidates = decisive(space)
        estimates = self._estimates(job, candidates)
        fitting = [c for c in candidates if estimates[c.key].fits] or [leanest(space)]
        best = max(fitting, key=lambda c: estimates[c.key].tokens_per_s or 0.0)
        fastest = estimates[best.key].tokens_per_s
        return Way(
            changes=changes,
            candidate=best,
            estimate=estimates[best.key],
            speed=fastest / speed if fastest and speed else None,
            packages=tuple(packages_to_install(job, self._facts, best)),
        )

    def _space(self, job: Job) -> SearchSpace | None:
        """The space of a changed job; None where it has none."""
        try:
            definition = load_definition(job.method, job.search_space)
            return bind(narrowed(definition, job, self._facts), job, self._facts)
        except UserError:
            return None

    def _fits(self, job: Job, candidate: Candidate) -> bool:
        self._lists += 1
        self._estimator.progress.looking_at(f"list of changes {self._lists}")
        return self._estimates(job, [candidate], speed=False)[candidate.key].fits

    def _speed_if_it_fitted(self, space: SearchSpace) -> float | None:
        estimates = self._estimates(self._job, decisive(space)).values()
        return max((estimate.tokens_per_s or 0.0 for estimate in estimates), default=0.0) or None

    def _estimates(
        self, job: Job, candidates: Sequence[Candidate], *, speed: bool = True
    ) -> dict[str, Estimate]:
        ceilings = self._ceilings if speed else None
        estimator = dataclasses.replace(self._estimator, job=job, ceilings=ceilings)
        return estimator.estimates(candidates)


def _too_long(fields: set[str]) -> bool:
    """Whether a list is not looked at: three changes, offloading among them. Each estimate of that
    is a trace of DeepSpeed, and they would be most of all lists."""
    return OPTIMIZER_OFFLOAD in fields and len(fields) > MOST_WITH_OFFLOADING


def leanest(space: SearchSpace) -> Candidate:
    """The candidate that should take least."""
    return min(space.candidates, key=expected_leanness)


def decisive(space: SearchSpace) -> list[Candidate]:
    """The leanest candidate, and those that differ from it in what decides about memory only."""
    lean = leanest(space)
    return [
        candidate
        for candidate in space.candidates
        if all(candidate.values.get(name) == lean.values.get(name) for name in LITTLE_TO_MEMORY)
    ]
