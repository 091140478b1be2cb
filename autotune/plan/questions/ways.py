"""The changes that would make a job fit: plans of changed jobs, out of the same traces.

Changes are those of `changes.py`, alone first; where none is enough, two together. Each changed job
is bound and estimated as any plan is, but for the candidates that decide about memory alone. What
cannot fit by its weights, gradients and moments, or by the closed form, is not traced. Of changes
of one field the first that is enough is named.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate, prior_residual
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.candidates import TYPICAL_PROCESS, by_formula
from autotune.plan.choices import leanness
from autotune.plan.estimator import Estimator
from autotune.plan.least_memory import least_bytes
from autotune.plan.narrowing import kept_on_device, planned_space
from autotune.plan.questions.changes import (
    Advice,
    Change,
    Way,
    changed_fields,
    is_checked,
    more_devices,
    offloading,
    price,
    single_changes,
)
from autotune.plan.trace_choice import BY_FORMULA, RULED_OUT, Effort
from autotune.space.bind import SearchSpace
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.packages import packages_to_install
from autotune.space.sharding.sharding import sharding_of
from autotune.space.trl_config import settings

MOST_WAYS = 3
"""Ways that a plan names, and after which it looks no further."""
MOST_LISTS, MOST_LISTS_ON_A_CPU = 12, 4
"""The most lists of one length that are estimated. On a CPU each estimate is a trace: for a job
with eight candidates 12 lists of two took minutes."""
FASTEST = Effort(first=2)
"""The effort of `autotune advise` and of runs: engines are traced for the fastest two."""
_WAVE = 4
"""Lists that are traced beside each other. Chosen, not measured."""
_LITTLE_TO_MEMORY = (
    *("attn_implementation", "optim", "dataloader_num_workers", "expandable_segments"),
    *("torch_compile", "train_sampling_strategy", "loss_type", "padding_free"),
    "use_liger_kernel",
)
"""Knobs that keep the leanest candidate's values while a way out is looked for."""


@dataclass(frozen=True, eq=False)
class ChangedJob:
    """A list of changes, the job that it makes, and the facts it is bound with."""

    changes: tuple[Change, ...]
    estimator: Estimator

    @property
    def job(self) -> Job:
        """The job after the changes."""
        return self.estimator.job

    @cached_property
    def space(self) -> SearchSpace | None:
        """The space of the job; None: it has none."""
        try:
            definition = load_definition(self.job.method)
            return planned_space(definition, self.job, self.estimator.facts)
        except UserError:
            return None

    @cached_property
    def candidates(self) -> Sequence[Candidate]:
        """The candidates that are estimated, the leanest first: those that differ from it only in
        what decides about memory; where each is a trace of its own, the leanest alone."""
        if self.space is None:
            return ()
        if self.estimator.effort != BY_FORMULA and self.job.devices.total > 1:
            return sorted(self.space.candidates, key=_fused_leanness)  # its engines are traced
        ordered = sorted(kept_on_device(self.space.candidates), key=_fused_leanness)
        lean, facts = ordered[0], self.estimator.facts
        if METHODS[self.job.method].online or facts.device.kind == "cpu":
            return [lean]
        sharding = sharding_of(lean.values, 2)
        return [
            one
            for one in ordered
            if all(one.values.get(name) == lean.values.get(name) for name in _LITTLE_TO_MEMORY)
            and sharding_of(one.values, 2) == sharding
        ]

    @property
    def field(self) -> tuple[frozenset[str], str]:
        """The changes but the last, and the field of the last."""
        return frozenset(change.text for change in self.changes[:-1]), self.changes[-1].field

    @property
    def least_bytes(self) -> int:
        """The bytes of weights, gradients and moments of the leanest candidate."""
        return least_bytes(settings(self.job, self.estimator.facts, self.candidates[0]))

    @property
    def may_fit(self) -> bool:
        """True if the leanest candidate is worth a trace: by the closed form it may fit, or devices
        divide it, which that form leaves out."""
        facts, lean = self.estimator.facts, self.candidates[0]
        sharding = sharding_of(lean.values, self.job.devices.total)
        if self.estimator.effort == BY_FORMULA and sharding.offloads:
            return False
        if sharding.zero_stage:
            return True
        residual = prior_residual(facts.device, TYPICAL_PROCESS, self.job.devices.total)
        chosen = settings(self.job, facts, lean)
        return by_formula(chosen, residual, self.estimator.limit, "").p_oom < RULED_OUT


def _fused_leanness(candidate: Candidate) -> tuple[Any, ...]:
    """Return the key that sorts candidates by expected memory, those with fused kernels first: of
    what is as lean they are the fastest."""
    return not candidate.values.get("use_liger_kernel"), *expected_leanness(candidate)


class Advisor:
    """A search for ways out.

    Args:
        estimator: of the job as it is.
        kind: of device that is planned for; None: the one that is here.
        tried: single changes, by their texts, that probes found not to be enough.
        most: ways after which it ends.
        effort: for which candidates engines are traced. By formula alone nothing is named that is
            kept off the device: for a 7B model's optimizer the formula gave 18 GiB, and the trace
            more than 24.
    """

    def __init__(
        self,
        estimator: Estimator,
        kind: DeviceKind | None = None,
        *,
        tried: Collection[str] = (),
        most: int = MOST_WAYS,
        effort: Effort = BY_FORMULA,
    ) -> None:
        self._kind, self._tried, self._most = kind, tried, most
        self._estimator = dataclasses.replace(estimator, effort=effort)
        self._lists = self._ruled_out = 0

    def advice(
        self,
        space: SearchSpace,
        estimates: Mapping[str, Estimate] | None = None,
        *,
        seen_to_fail: bool = False,
    ) -> Advice:
        """Return the shortest ways out of a job for which nothing is safe.

        Args:
            space: of the job as it is.
            estimates: of its candidates, by their keys, where they are known already.
            seen_to_fail: whether probes showed that it does not fit.
        """
        if estimates is None:
            lean = min(space.candidates, key=expected_leanness)
            estimates = self._estimator.estimates([lean])
        known = (one for one in space.candidates if one.key in estimates)
        nearest = min(known, key=lambda one: leanness((one, estimates[one.key])))
        estimate, job = estimates[nearest.key], ChangedJob((), self._estimator)
        singles = list(self._longer(job, nearest))
        ways = self._ways([one for one in singles if one.changes[0].text not in self._tried])
        if not ways:
            pairs = {
                frozenset(change.text for change in pair.changes): pair
                for one in singles
                if one.candidates
                for pair in self._longer(one, one.candidates[0])
            }
            ways = self._ways(list(pairs.values()))
        return Advice(
            fits=estimate.fits and not seen_to_fail,
            nearest=nearest,
            estimate=estimate,
            limit_bytes=self._estimator.limit,
            device=self._estimator.facts.device.name,
            ways=tuple(sorted(ways, key=price)[: self._most]),
            tried=self._lists,
            ruled_out=self._ruled_out,
        )

    def _longer(self, job: ChangedJob, nearest: Candidate) -> Iterator[ChangedJob]:
        """Yield the lists with one more change, of another field."""
        changed = {change.field for change in job.changes}
        for change in self._changes(job.job, nearest):
            if change.field not in changed:
                estimator = dataclasses.replace(self._estimator, job=change.job)
                yield ChangedJob((*job.changes, change), estimator)

    def _changes(self, job: Job, nearest: Candidate) -> Iterator[Change]:
        yield from offloading(job, self._estimator.facts.device.kind)
        yield from single_changes(job, nearest)
        if self._kind is not None:  # of the devices that are here one is tuned for
            yield from more_devices(job)

    def _ways(self, lists: Sequence[ChangedJob]) -> list[Way]:
        """Return the ways among lists of one length: waves of them are estimated, of each field the
        smallest change first, until enough are found."""
        open_lists = [one for one in lists if one.candidates and self._is_open(one)]
        on_cpu = self._estimator.facts.device.kind == "cpu"
        left = MOST_LISTS_ON_A_CPU if on_cpu else MOST_LISTS
        ways: list[Way] = []
        while open_lists and left > 0 and len(ways) < self._most:
            first_of_fields = {one.field: one for one in reversed(open_lists)}
            wave = [one for one in open_lists if one is first_of_fields[one.field]]
            wave = wave[: min(_WAVE, left)]
            left -= len(wave)
            found = {id(one): way for one, way in zip(wave, self._estimated(wave), strict=True)}
            ways += [way for way in found.values() if way is not None]
            enough = {one.field for one in wave if found[id(one)] is not None}
            open_lists = [
                one for one in open_lists if id(one) not in found and one.field not in enough
            ]
        return ways

    def _is_open(self, job: ChangedJob) -> bool:
        if job.least_bytes > self._estimator.limit:
            self._ruled_out += 1
            return False
        return job.may_fit

    def _estimated(self, wave: Sequence[ChangedJob]) -> list[Way | None]:
        """Return for each list the way to the fastest safe candidate of its job; None: none is."""
        self._lists += len(wave)
        self._estimator.progress.looking_at(f"{self._lists} lists of changes")
        groups = [(one.estimator, one.candidates) for one in wave]
        known = self._estimator.estimates_together(groups)
        return [self._way(one, estimates) for one, estimates in zip(wave, known, strict=True)]

    def _way(self, job: ChangedJob, known: Mapping[str, Estimate]) -> Way | None:
        safe = [one for one in job.candidates if is_checked(known[one.key])]
        if not safe:
            return None
        best = max(safe, key=lambda one: _preference(known[one.key]))
        return Way(
            changes=job.changes,
            candidate=best,
            estimate=known[best.key],
            fields=changed_fields(self._estimator.job, job.job),
            packages=tuple(packages_to_install(job.job, self._estimator.facts, best)),
        )


def _preference(estimate: Estimate) -> tuple[float, bool, int]:
    """Return the preference for a candidate: the fastest is the best; then what was traced as it
    is; then the leanest."""
    return estimate.tokens_per_s or 0.0, estimate.traced, -estimate.peak_memory_bytes
