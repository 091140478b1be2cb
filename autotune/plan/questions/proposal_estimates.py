"""Estimates of lists of changes: as few traces as name the fastest candidate of each.

The traces of a stage are made beside each other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property

from autotune.estimate.estimate import Estimate, prior_residual
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.candidates import TYPICAL_PROCESS, by_formula
from autotune.plan.device import ceilings_of
from autotune.plan.estimator import Estimator
from autotune.plan.questions.bisection import Bisection
from autotune.plan.questions.leanest import decisive
from autotune.plan.questions.proposal import Proposal
from autotune.plan.trace_choice import RULED_OUT, Effort
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.sharding.sharding import sharding_of
from autotune.space.trl_config import settings

BY_FORMULA = Effort(first=0)
"""The effort of ways out: a plan has no time to trace DeepSpeed for them. By formula alone, nothing
that is kept off the device is named: for a 7B model's optimizer the formula gave 18 GiB, and the
trace more than 24."""
TRACES = 2
"""Number of candidates estimated beside each other where one micro-batch is looked for. Chosen."""
NO_LIMIT = 1 << 60
"""A memory limit in bytes that no training reaches."""


class ProposalEstimates:
    """The estimates of candidates of changed jobs.

    Args:
        estimator: of the job as it is.
        kind: of device that is planned for; None: the one that is here.
        space: of the job as it is.

    Attributes:
        speed: tokens/s of the job as it is, if it fitted; None: not known (yet).
    """

    def __init__(
        self, estimator: Estimator, kind: DeviceKind | None, effort: Effort, space: SearchSpace
    ) -> None:
        self._estimator, self._kind, self._effort = estimator, kind, effort
        self._job, self._facts = estimator.job, estimator.facts
        # All that costs memory and saves time.
        self._largest: Candidate | None = max(decisive(space), key=expected_leanness)
        self.speed: float | None = None

    @property
    def is_by_formula(self) -> bool:
        """True if no engine is traced."""
        return self._effort == BY_FORMULA

    def of_job(self, candidate: Candidate) -> Estimate:
        """Return the estimate of a candidate of the job as it is."""
        return self._with(self._job).estimates([candidate])[candidate.key]

    def of_lists(self, proposals: Sequence[Proposal]) -> list[dict[str, Estimate]]:
        """Return estimates of the candidates of each list, by their keys, all traces of a stage
        beside each other: the leanest first, with all the others where the closed form says it
        fits."""
        each_is_a_trace = METHODS[self._job.method].online or self._facts.device.kind == "cpu"
        bisects = self.is_by_formula and each_is_a_trace
        first_candidates = [
            p.candidates if not bisects and self._should_fit(p) else p.candidates[:1]
            for p in proposals
        ]
        known = self._together(
            [(p.job, of_list) for p, of_list in zip(proposals, first_candidates, strict=True)]
        )
        if bisects:
            return self._bisected(proposals, known)
        further = [
            number
            for number, (p, of_list) in enumerate(zip(proposals, known, strict=True))
            if len(of_list) < len(p.candidates) and not _is_hopeless(p, of_list)
        ]
        further_estimates = self._together(
            [(proposals[n].job, proposals[n].candidates) for n in further]
        )
        for number, estimates in zip(further, further_estimates, strict=True):
            known[number] |= estimates
        return known

    def _should_fit(self, proposal: Proposal) -> bool:
        """True if the leanest candidate of a list fits by the closed form, or if its devices divide
        something, which the closed form leaves out: such a list is made because that should be
        enough."""
        job = proposal.job
        if sharding_of(proposal.candidates[0].values, job.devices.total).zero_stage:
            return True
        residual = prior_residual(self._facts.device, TYPICAL_PROCESS, job.devices.total)
        chosen = settings(job, self._facts, proposal.candidates[0])
        return by_formula(chosen, residual, self._estimator.limit, "").fits

    def _bisected(
        self, proposals: Sequence[Proposal], known: list[dict[str, Estimate]]
    ) -> list[dict[str, Estimate]]:
        """Return just enough estimates to find the largest safe micro-batch of each list, where
        each is a trace of its own.

        Args:
            known: of the leanest candidate of each.
        """
        searches = [
            Bisection(p, of_list)
            for p, of_list in zip(proposals, known, strict=True)
            if not _is_hopeless(p, of_list)
        ]
        while searches:
            at_once = max(TRACES // len(searches), 1)
            following = [(search.job, search.following(at_once)) for search in searches]
            for search, estimates in zip(searches, self._together(following), strict=True):
                search.hear(estimates)
            searches = [search for search in searches if search.following(1)]
        return known

    def _together(
        self, groups: Sequence[tuple[Job, Sequence[Candidate]]]
    ) -> list[dict[str, Estimate]]:
        """Return the estimates of candidates of several jobs, by their keys. Estimate the speed of
        the unchanged job with the first of them."""
        pairs = [(self._with(job), candidates) for job, candidates in groups]
        largest, self._largest = self._largest, None
        if largest is not None:
            pairs.append((self._with(self._job, NO_LIMIT), [largest]))
        estimates = self._with(self._job).estimates_together(pairs)
        if largest is not None:
            self.speed = estimates.pop()[largest.key].tokens_per_s or None
        return estimates

    def _with(self, job: Job, limit: int | None = None) -> Estimator:
        return dataclasses.replace(
            self._estimator,
            job=job,
            ceilings=self._ceilings,
            effort=self._effort,
            limit=limit or self._estimator.limit,
        )

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
            estimator.server,
            folder,
            estimator.progress,
        )


def _is_hopeless(proposal: Proposal, known: Mapping[str, Estimate]) -> bool:
    """True if the leanest candidate of a list does not fit, so that no other needs an estimate."""
    return known[proposal.candidates[0].key].p_oom >= RULED_OUT
