"""What would make a job fit: the shortest lists of changes, each with its price in speed.

Estimates only. Changes are those of `changes.py`, alone first, then two and three together; a list
is not made longer once it fits, and of changes of one field the first that is enough is named. What
cannot fit by its weights, gradients and moments alone is not traced (`least_memory.py`). A list is
named only where a candidate is safe by the same estimates as a plan's; its speed is that of the
fastest safe one, among those that differ in what decides about memory. (Where the method generates,
the fastest is found by bisection: the largest micro-batch that is safe.)

A plan of a job that does not fit asks for the shortest lists; `autotune advise` goes on from there.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.ceilings import ceilings_of
from autotune.plan.engines import RULED_OUT, Effort
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import narrowed
from autotune.plan.questions.changes import Change, more_devices, offloading, single_changes
from autotune.plan.questions.leanest import (
    decisive,
    leanest,
    leanest_of_each_kind,
    offloads,
)
from autotune.plan.questions.least_memory import least_bytes
from autotune.plan.questions.proposal import Proposal, smallest_of_each_field
from autotune.plan.questions.way import Advice, Way, is_checked, preference, price
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.packages import packages_to_install
from autotune.space.settings import settings
from autotune.space.sharding.sharding import OPTIMIZER_OFFLOAD

MOST_CHANGES, MOST_WITH_OFFLOADING = 3, 2
FASTEST = Effort(first=2)
"""Only the fastest that fits is shown; two are traced beside each other."""
MOST_LISTS = 12
"""Lists of one length that a plan traces at most; `autotune advise` has no such bound."""
BY_FORMULA = Effort(first=0)
"""A plan has no time to trace DeepSpeed for its ways out. By formula alone nothing that is kept off
the device is named: of a 7B model's optimizer it said 18 GiB, and the trace more than 24."""
NEARLY_LEANEST = 4
"""So many candidates are traced where the one that should be the leanest is nearly safe."""
NO_LIMIT = 1 << 60
"""Bytes that no training needs."""


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
        self._lists = self._ruled_out = 0
        self._effort = FASTEST

    @cached_property
    def _ceilings(self) -> Ceilings | None:
        estimator = self._estimator
        if estimator.ceilings is not None:
            return estimator.ceilings
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
        """All ways out of a job whose space this is."""
        nearest = leanest(space)
        estimate = self._estimates(self._job, [nearest])[nearest.key]
        ways: list[Way] = []
        if seen_to_fail or not estimate.fits:
            speed = self._speed_if_it_fitted(space)
            ways = [way for level in self._levels(nearest, speed) for way in level]
        fits = estimate.fits and not seen_to_fail
        return self._advice(nearest, estimate, ways, fits=fits)

    def shortest(self, estimates: Mapping[str, Estimate], space: SearchSpace) -> Advice:
        """The shortest ways out of a job of which a plan found that no candidate fits.

        Args:
            estimates: of all candidates of the space, by their keys.
        """
        nearest = min(space.candidates, key=lambda one: estimates[one.key].peak_memory_bytes)
        self._effort = BY_FORMULA
        levels = self._levels(leanest(space), self._speed_if_it_fitted(space), MOST_LISTS)
        ways = next((level for level in levels if level), [])
        return self._advice(nearest, estimates[nearest.key], ways, fits=False)

    def _advice(
        self, nearest: Candidate, estimate: Estimate, ways: Sequence[Way], *, fits: bool
    ) -> Advice:
        return Advice(
            fits=fits,
            nearest=nearest,
            estimate=estimate,
            limit_bytes=self._estimator.limit,
            device=self._facts.device.name,
            ways=tuple(sorted(ways, key=price)),
            tried=self._lists,
            ruled_out=self._ruled_out,
        )

    def _levels(
        self, nearest: Candidate, speed: float | None, most: int | None = None
    ) -> Iterator[list[Way]]:
        """The ways of one change, then of two, then of three.

        Args:
            most: lists of one length that are estimated at most; None: all.
        """
        front = [Proposal(changes=(), job=self._job, lean=nearest)]
        looked_at: set[frozenset[str]] = set()
        fitting: list[frozenset[str]] = []
        for _ in range(MOST_CHANGES):
            proposals = [p for shorter in front for p in self._longer(shorter, looked_at, fitting)]
            front = [p for p in proposals if self._is_probed(p)]
            ways: list[Way] = []
            proposals = [p for p in proposals if not self._is_probed(p)]
            before = self._lists
            while proposals and not (ways and self._effort == BY_FORMULA):
                left = None if most is None else most - (self._lists - before)
                wave = smallest_of_each_field(proposals)[:left]
                found = self._ways(wave, speed)
                ways += [way for way in found if way is not None]
                enough = [p for p, way in zip(wave, found, strict=True) if way is not None]
                fitting += [p.texts for p in enough]
                front += [p for p in wave if p not in enough]
                fields = [p.place for p in enough]
                proposals = [p for p in proposals if p not in wave and p.place not in fields]
                if not wave:
                    front += proposals
                    break
            yield ways

    def _longer(
        self,
        shorter: Proposal,
        looked_at: set[frozenset[str]],
        fitting: Sequence[frozenset[str]],
    ) -> Iterator[Proposal]:
        """The lists with one more change."""
        changed = {change.field for change in shorter.changes}
        for change in self._changes(shorter.job, shorter.lean):
            changes = (*shorter.changes, change)
            texts = frozenset(c.text for c in changes)
            if change.field in changed or _too_long({*changed, change.field}):
                continue
            if texts in looked_at or any(fits <= texts for fits in fitting):
                continue
            looked_at.add(texts)
            space = self._space(change.job)
            if space is not None:
                yield Proposal(
                    changes=changes,
                    job=change.job,
                    lean=leanest(space),
                    candidates=sorted(decisive(space), key=expected_leanness),
                )

    def _is_probed(self, proposal: Proposal) -> bool:
        return len(proposal.changes) == 1 and proposal.changes[0].text in self._tried

    def _changes(self, job: Job, nearest: Candidate) -> Iterator[Change]:
        yield from offloading(job, self._facts.device.kind)
        yield from single_changes(job, nearest)
        if self._kind is not None:  # of the devices that are here one is tuned for
            yield from more_devices(job)

    def _ways(self, wave: Sequence[Proposal], speed: float | None) -> list[Way | None]:
        """Of each list the fastest safe candidate of the changed job; None: none is safe. The
        leanest ones are traced beside each other."""
        traced = [p for p in wave if self._may_fit(p)]
        self._lists += len(traced)
        self._estimator.progress.looking_at(f"{self._lists} lists of changes")
        leanest_ones = [(p.job, p.candidates[0]) for p in traced]
        estimates = self._with(self._job).estimates_of_jobs(leanest_ones)
        ways = {
            id(p): self._way(p, estimate, speed)
            for p, estimate in zip(traced, estimates, strict=True)
        }
        return [ways.get(id(p)) for p in wave]

    def _may_fit(self, proposal: Proposal) -> bool:
        """Whether a list is worth a trace."""
        if self._effort == BY_FORMULA and offloads(proposal.candidates[0]):
            return False
        chosen = settings(proposal.job, self._facts, proposal.candidates[0])
        fits = least_bytes(chosen) <= self._estimator.limit
        self._ruled_out += not fits
        return fits

    def _way(self, proposal: Proposal, lean: Estimate, speed: float | None) -> Way | None:
        job = proposal.job
        if lean.p_oom >= RULED_OUT:
            return None
        known = self._known(proposal, lean)
        safe = [
            one for one in proposal.candidates if one.key in known and is_checked(known[one.key])
        ]
        if not safe:
            return None
        best = max(safe, key=lambda one: preference(known[one.key]))
        fastest = known[best.key].tokens_per_s
        return Way(
            changes=proposal.changes,
            candidate=best,
            estimate=known[best.key],
            speed=fastest / speed if fastest and speed else None,
            packages=tuple(packages_to_install(job, self._facts, best)),
        )

    def _known(self, proposal: Proposal, lean: Estimate) -> dict[str, Estimate]:
        """Estimates of a changed job's candidates. Where each micro-batch is a trace, a plan makes
        as few as find the largest that is safe."""
        ordered, job = proposal.candidates, proposal.job
        if self._effort != BY_FORMULA or not METHODS[job.method].online:
            return self._estimates(job, ordered)
        if not is_checked(lean):
            return self._estimates(job, ordered[:NEARLY_LEANEST])
        known = {ordered[0].key: lean}
        ordered = leanest_of_each_kind(ordered)
        safe, unsafe = 0, len(ordered)
        while unsafe - safe > 1:
            middle = (safe + unsafe) // 2
            known |= self._estimates(job, [ordered[middle]])
            is_safe = is_checked(known[ordered[middle].key])
            safe, unsafe = (middle, unsafe) if is_safe else (safe, middle)
        return known

    def _space(self, job: Job) -> SearchSpace | None:
        """The space of a changed job; None where it has none."""
        try:
            definition = load_definition(job.method, job.search_space)
            return bind(narrowed(definition, job, self._facts), job, self._facts)
        except UserError:
            return None

    def _speed_if_it_fitted(self, space: SearchSpace) -> float | None:
        """Tokens/s of the job as it is with all that costs memory and saves time."""
        largest = max(decisive(space), key=expected_leanness)
        estimates = self._estimates(self._job, [largest], limit=NO_LIMIT)
        return estimates[largest.key].tokens_per_s or None

    def _estimates(
        self, job: Job, candidates: Sequence[Candidate], limit: int | None = None
    ) -> dict[str, Estimate]:
        return self._with(job, limit).estimates(candidates)

    def _with(self, job: Job, limit: int | None = None) -> Estimator:
        return dataclasses.replace(
            self._estimator,
            job=job,
            ceilings=self._ceilings,
            effort=self._effort,
            limit=limit or self._estimator.limit,
        )


def _too_long(fields: set[str]) -> bool:
    """Whether a list is not looked at: three changes, offloading among them. Each estimate of that
    is a trace of DeepSpeed, and they would be most of all lists."""
    return OPTIMIZER_OFFLOAD in fields and len(fields) > MOST_WITH_OFFLOADING
