"""The largest micro-batch, or the longest rows, that fit a device."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import user_error
from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.children import trace_server
from autotune.plan.choices import is_safe
from autotune.plan.device import placed, planned_facts, planned_limit
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import kept_on_device, planned_space
from autotune.plan.progress import Progress
from autotune.plan.trace_choice import Effort
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import MICRO_BATCH, Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.packages import packages_to_install

STARTS = {
    MICRO_BATCH: (1, 4, 16, 64, 256, 1024, 4096),
    "max_length": (512, 2048, 8192, 32768, 131072),
}
STEP = {MICRO_BATCH: 1, "max_length": 128}
"""Step of each knob's values: `max_length` is rounded down to a multiple of 128."""


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest value of a knob that is safe.

    Attributes:
        value: it (`choices.SAFE`); None: not even the smallest is.
        estimate: what it takes.
        too_large: the next one, which is not safe; None: larger ones were not tried.
        candidate: the leanest of the job's, with this value: the others need more.
        space: that of the job as it is.
        packages: what it needs that is not on this machine.
        most_rows: of the job's optimizer step on a device; a larger micro-batch needs another job.
    """

    knob: str
    value: int | None
    estimate: Estimate | None
    too_large: int | None
    candidate: Candidate
    space: SearchSpace
    device: str
    limit_bytes: int
    most_rows: int
    packages: tuple[str, ...] = ()


def largest(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    knob: str,
    *,
    device: str | None,
    assume: bool = True,
    progress: Progress | None = None,
) -> Largest:
    """Look for the largest value of a knob with which the job is safe, at its leanest.

    The values are tried in growing steps, and then where the line through the two nearest peaks
    meets the limit: each is one estimate.
    """
    if METHODS[job.method].online:
        raise user_error(
            f"autotune cannot look for the largest value with `method: {job.method}`, "
            "where the number of completions generated together changes with it",
            where=knob,
            hint="plan the space: `autotune plan job.yaml --fits`",
        )
    run = RunFolder(path=scratch)
    job, kind = placed(job, device)
    with trace_server(scratch, elsewhere=kind is not None) as server:
        facts = planned_facts(job, run, server, kind, assume=assume)
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=planned_limit(job, facts),
            server=server,
            folder=scratch / "traces",
            rows=run.rows,
            effort=Effort(first=None),
            progress=progress or Progress(),
        )
        return LargestSearch(estimator, planned_space(definition, job, facts), knob).answer()


class LargestSearch:
    """A search for the largest value of a knob, from the leanest candidate of a space."""

    def __init__(self, estimator: Estimator, space: SearchSpace, knob: str) -> None:
        self._estimator, self._space, self._knob = estimator, space, knob
        kept = kept_on_device(space.candidates)
        cut = [one for one in kept if not one.values.get("padding_free")]
        self._lean = min(cut or kept, key=expected_leanness)
        if knob == "max_length" and self._lean.values.get("padding_free"):
            raise user_error(
                "without padding no row is cut to max_length, so no length is the largest",
                where="padding_free",
                hint="ask for the largest per_device_train_batch_size, or unpin padding_free",
            )
        self._guesses = 0
        self._known: dict[int, Estimate] = {}

    def _starts(self) -> list[int]:
        """Return the values to try first: no rows longer than the model has positions for."""
        starts, longest = list(STARTS[self._knob]), self._estimator.facts.model.max_positions
        if self._knob == MICRO_BATCH or longest is None:
            return starts
        return [value for value in starts if value < longest] + [longest]

    def answer(self) -> Largest:
        """Look for the largest safe value."""
        value, too_large = self._largest(self._starts())
        return Largest(
            knob=self._knob,
            value=value or None,
            estimate=self._known.get(value),
            too_large=too_large,
            candidate=self._candidate(value or self._starts()[0]),
            space=self._space,
            device=self._estimator.facts.device.name,
            limit_bytes=self._estimator.limit,
            most_rows=self._lean.global_batch,
            packages=tuple(
                packages_to_install(self._estimator.job, self._estimator.facts, self._lean)
            ),
        )

    def _largest(self, starts: Sequence[int]) -> tuple[int, int | None]:
        """Return (the largest safe value, or 0; the next that is not safe, or None).

        Args:
            starts: values to try first, in growing steps.
        """
        value, too_large = 0, None
        for start in starts:
            if not is_safe(self._estimate(start)):
                too_large = start
                break
            value = start
        while too_large is not None and too_large - value > STEP[self._knob]:
            between = self._between(value, too_large)
            if is_safe(self._estimate(between)):
                value = between
            else:
                too_large = between
        return value, too_large

    def _between(self, value: int, too_large: int) -> int:
        """Return the next value to try: interpolate to the limit; every third time bisect, so that
        the interval always shrinks."""
        step, share = STEP[self._knob], 0.5
        self._guesses += 1
        if value and self._guesses % 3:
            low, high = (self._known[n].peak_memory_bytes for n in (value, too_large))
            share = (self._estimator.limit - low) / max(high - low, 1)
        guess = round((value + share * (too_large - value)) / step) * step
        return min(max(guess, value + step), too_large - step)

    def _estimate(self, value: int) -> Estimate:
        if value not in self._known:
            self._known[value] = self._estimated(value)
        return self._known[value]

    def _estimated(self, value: int) -> Estimate:
        self._estimator.progress.looking_at(f"{self._knob} {value}")
        candidate = self._candidate(value)
        facts = self._facts_to_try()
        return dataclasses.replace(self._estimator, facts=facts).estimates([candidate])[
            candidate.key
        ]

    def _facts_to_try(self) -> Facts:
        """Return the facts, for `max_length` without measured rows: the data must not decide what
        could fit."""
        facts = self._estimator.facts
        if self._knob != "max_length":
            return facts
        return dataclasses.replace(facts, data=dataclasses.replace(facts.data, rows_measured=0))

    def _candidate(self, value: int) -> Candidate:
        steps = 2 if self._knob == MICRO_BATCH else self._lean.gradient_accumulation_steps
        values = {**self._lean.values, self._knob: value}
        return Candidate(values=values, gradient_accumulation_steps=steps)
