"""The shortest lists of changes that would make a job fit, each with its price in speed.

Estimates only. Changes are those of `changes.py`, alone first, then two and three together; a list
is not made longer once it fits, and of changes of one field the first that is enough is named. What
cannot fit by its weights, gradients and moments alone is not traced (`least_memory.py`). A list is
named only where a candidate is safe by the same estimates as a plan's; its speed is that of the
fastest safe one, among those that differ in what decides about memory. (Where the method generates,
the fastest is found by bisection: the largest micro-batch that is safe.)

A plan of a job that does not fit asks for the shortest lists; `autotune advise` goes on from there.
"""

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.plan.choices import is_safe, leanness
from autotune.plan.estimator import Estimator
from autotune.plan.least_memory import least_bytes
from autotune.plan.narrowing import planned_space
from autotune.plan.questions.changes import (
    Change,
    changed_fields,
    more_devices,
    offloading,
    single_changes,
)
from autotune.plan.questions.leanest import leanest, offloads
from autotune.plan.questions.proposal import Proposal, smallest_of_each_field
from autotune.plan.questions.proposal_estimates import BY_FORMULA, ProposalEstimates
from autotune.plan.questions.way import Advice, Way, is_checked, preference, price
from autotune.plan.trace_choice import Effort
from autotune.space.bind import SearchSpace
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate
from autotune.space.packages import packages_to_install
from autotune.space.sharding.sharding import OPTIMIZER_OFFLOAD
from autotune.space.trl_config import settings

MOST_CHANGES, MOST_WITH_OFFLOADING = 3, 2
FASTEST = Effort(first=2)
"""The effort of ways out: only the fastest candidate that fits is shown; two are traced beside each
other."""
MOST_LISTS, MOST_LISTS_ON_A_CPU = 12, 4
"""The most lists of one length that a plan or a run estimates; `autotune advise` has no such bound.
On a CPU each estimate is a trace: for a job with eight candidates 12 lists of two took minutes."""


class Advisor:
    """A search for ways out.

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
        self._estimates: ProposalEstimates

    def advice(
        self, space: SearchSpace, *, seen_to_fail: bool = False, briefly: bool = False
    ) -> Advice:
        """Return the ways out of a job with this space.

        Args:
            briefly: the shortest ways alone, of as many lists as a plan looks at.
        """
        nearest = leanest(space)
        effort = BY_FORMULA if briefly else FASTEST
        self._estimates = ProposalEstimates(self._estimator, self._kind, effort, space)
        estimate = self._estimates.of_job(nearest)
        ways: list[Way] = []
        if seen_to_fail or not is_safe(estimate):
            levels = self._levels(space, self._most_lists if briefly else None)
            if briefly:
                ways = next((level for level in levels if level), [])
            else:
                ways = [way for level in levels for way in level]
        fits = estimate.fits and not seen_to_fail
        return self._advice(nearest, estimate, ways, fits=fits)

    def shortest(self, estimates: Mapping[str, Estimate], space: SearchSpace) -> Advice:
        """Return the shortest ways out of a job for which a plan has no safe candidate.

        Args:
            estimates: of all candidates of the space, by their keys.
        """
        nearest = min(space.candidates, key=lambda one: leanness((one, estimates[one.key])))
        self._estimates = ProposalEstimates(self._estimator, self._kind, BY_FORMULA, space)
        levels = self._levels(space, self._most_lists)
        ways = next((level for level in levels if level), [])
        estimate = estimates[nearest.key]
        return self._advice(nearest, estimate, ways, fits=estimate.fits)

    @property
    def _most_lists(self) -> int:
        return MOST_LISTS_ON_A_CPU if self._facts.device.kind == "cpu" else MOST_LISTS

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

    def _levels(self, space: SearchSpace, most: int | None = None) -> Iterator[list[Way]]:
        """Yield the ways of one change, then of two, then of three.

        Args:
            most: lists of one length that are estimated at most; None: all.
        """
        front = [Proposal(changes=(), job=self._job, bind=lambda: space)]
        looked_at: set[frozenset[str]] = set()
        fitting: list[frozenset[str]] = []
        for _ in range(MOST_CHANGES):
            proposals = [p for shorter in front for p in self._longer(shorter, looked_at, fitting)]
            front = [p for p in proposals if self._is_probed(p)]
            ways: list[Way] = []
            proposals = [p for p in proposals if not self._is_probed(p)]
            before = self._lists
            while proposals and not (ways and self._estimates.is_by_formula):
                left = None if most is None else most - (self._lists - before)
                wave = list(itertools.islice(smallest_of_each_field(proposals), left))
                if not wave:
                    front += proposals
                    break
                ways_of_wave = self._ways(wave)
                ways += [way for way in ways_of_wave if way is not None]
                enough = [p for p, way in zip(wave, ways_of_wave, strict=True) if way is not None]
                fitting += [p.texts for p in enough]
                front += [p for p in wave if p not in enough]
                fields = [p.place for p in enough]
                proposals = [p for p in proposals if p not in wave and p.place not in fields]
            yield ways

    def _longer(
        self,
        shorter: Proposal,
        looked_at: set[frozenset[str]],
        fitting: Sequence[frozenset[str]],
    ) -> Iterator[Proposal]:
        """Yield the lists with one more change."""
        if not shorter.is_possible:
            return
        changed = {change.field for change in shorter.changes}
        for change in self._changes(shorter.job, shorter.lean):
            changes = (*shorter.changes, change)
            texts = frozenset(c.text for c in changes)
            if change.field in changed or _too_long({*changed, change.field}):
                continue
            if texts in looked_at or any(fits <= texts for fits in fitting):
                continue
            looked_at.add(texts)
            yield Proposal(
                changes=changes, job=change.job, bind=functools.partial(self._space, change.job)
            )

    def _is_probed(self, proposal: Proposal) -> bool:
        return len(proposal.changes) == 1 and proposal.changes[0].text in self._tried

    def _changes(self, job: Job, nearest: Candidate) -> Iterator[Change]:
        yield from offloading(job, self._facts.device.kind)
        yield from single_changes(job, nearest)
        if self._kind is not None:  # of the devices that are here one is tuned for
            yield from more_devices(job)

    def _ways(self, wave: Sequence[Proposal]) -> list[Way | None]:
        """Return for each list the way to the fastest safe candidate of its job; None: none is
        safe."""
        traced = [p for p in wave if self._may_fit(p)]
        self._lists += len(traced)
        self._estimator.progress.looking_at(f"{self._lists} lists of changes")
        known = self._estimates.of_lists(traced)
        ways = {id(p): self._way(p, of_list) for p, of_list in zip(traced, known, strict=True)}
        return [ways.get(id(p)) for p in wave]

    def _may_fit(self, proposal: Proposal) -> bool:
        """True if a list is worth a trace."""
        if self._estimates.is_by_formula and offloads(proposal.candidates[0]):
            return False
        chosen = settings(proposal.job, self._facts, proposal.candidates[0])
        fits = least_bytes(chosen) <= self._estimator.limit
        self._ruled_out += not fits
        return fits

    def _way(self, proposal: Proposal, known: Mapping[str, Estimate]) -> Way | None:
        safe = [
            one for one in proposal.candidates if one.key in known and is_checked(known[one.key])
        ]
        if not safe:
            return None
        best = max(safe, key=lambda one: preference(known[one.key]))
        fastest, unchanged = known[best.key].tokens_per_s, self._estimates.speed
        return Way(
            changes=proposal.changes,
            candidate=best,
            estimate=known[best.key],
            speed=fastest / unchanged if fastest and unchanged else None,
            fields=changed_fields(self._job, proposal.job),
            packages=tuple(packages_to_install(proposal.job, self._facts, best)),
        )

    def _space(self, job: Job) -> SearchSpace | None:
        """Return the space of a changed job; None where it has none."""
        try:
            definition = load_definition(job.method, job.search_space)
            return planned_space(definition, job, self._facts)
        except UserError:
            return None


def _too_long(fields: set[str]) -> bool:
    """True if a list is left out: three changes with offloading among them. Each of its estimates
    is a trace of DeepSpeed, and these would be most of all lists."""
    return OPTIMIZER_OFFLOAD in fields and len(fields) > MOST_WITH_OFFLOADING
