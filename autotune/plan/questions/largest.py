"""The largest micro-batch, or the longest rows, that fit a device."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import user_error
from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.children import Servers
from autotune.plan.device import device_facts, placed, planned_limit
from autotune.plan.engines import Effort
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.probe.survey import survey
from autotune.process.run_folder import RunFolder
from autotune.space.bind import bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import MICRO_BATCH, Candidate

STARTS = {
    MICRO_BATCH: (1, 4, 16, 64, 256, 1024, 4096),
    "max_length": (512, 2048, 8192, 32768, 131072),
}
STEP = {MICRO_BATCH: 1, "max_length": 128}
"""`max_length` is given to the next lower multiple of 128."""


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The answer: the largest value that fits, and what it and the next one take.

    `value` is None where not even the smallest fits. `bounded`: larger ones were not tried.
    `most_rows`: of the job's optimizer step on a device; a larger micro-batch needs another job.
    """

    knob: str
    value: int | None
    estimate: Estimate | None
    too_large: int | None
    device: str
    limit_bytes: int
    bounded: bool
    most_rows: int


def largest(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    knob: str,
    *,
    device: str | None,
    progress: Progress | None = None,
) -> Largest:
    """Look for the largest value of a knob with which the job's default candidate fits.

    The values are tried in growing steps, and then where the line through the two nearest peaks
    meets the limit: each is one estimate.
    """
    if METHODS[job.method].online:
        raise user_error(
            f"the largest value is not looked for with `method: {job.method}`, where what is "
            "generated together moves with it",
            where=knob,
            hint="plan the space: `autotune plan job.yaml --fits`",
        )
    run = RunFolder(path=scratch)
    job, kind = placed(job, device)
    with Servers(scratch) as servers:
        facts = device_facts(survey(job, run, servers.first), kind)
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=planned_limit(job, facts),
            servers=servers,
            folder=scratch / "traces",
            rows=run.rows,
            effort=Effort(first=None),
            progress=progress or Progress(),
        )
        return _Search(estimator, bind(definition, job, facts).default(), knob).answer()


class _Search:
    def __init__(self, estimator: Estimator, default: Candidate, knob: str) -> None:
        self._estimator, self._default, self._knob = estimator, default, knob
        if knob == "max_length" and default.values.get("padding_free"):
            raise user_error(
                "without padding no row is cut to max_length, so no length is the largest",
                where="padding_free",
                hint="ask for the largest per_device_train_batch_size, or unpin padding_free",
            )
        self._guesses = 0
        self._known: dict[int, Estimate] = {}

    def _starts(self) -> list[int]:
        """Values to try first: no rows longer than the model has positions for."""
        starts, longest = list(STARTS[self._knob]), self._estimator.facts.model.max_positions
        if self._knob == MICRO_BATCH or longest is None:
            return starts
        return [value for value in starts if value < longest] + [longest]

    def answer(self) -> Largest:
        """Look for it."""
        value, too_large = 0, None
        for candidate_value in self._starts():
            if not self._fits(candidate_value):
                too_large = candidate_value
                break
            value = candidate_value
        while too_large is not None and too_large - value > STEP[self._knob]:
            candidate_value = self._between(value, too_large)
            if self._fits(candidate_value):
                value = candidate_value
            else:
                too_large = candidate_value
        return Largest(
            knob=self._knob,
            value=value or None,
            estimate=self._known.get(value),
            too_large=too_large,
            device=self._estimator.facts.device.name,
            limit_bytes=self._estimator.limit,
            bounded=too_large is None,
            most_rows=self._default.global_batch,
        )

    def _between(self, value: int, too_large: int) -> int:
        """Where the limit should be met; at times the middle, so that the gap surely closes."""
        step, share = STEP[self._knob], 0.5
        self._guesses += 1
        if value and self._guesses % 3:
            low, high = (self._known[n].peak_memory_bytes for n in (value, too_large))
            share = (self._estimator.limit - low) / max(high - low, 1)
        guess = round((value + share * (too_large - value)) / step) * step
        return min(max(guess, value + step), too_large - step)

    def _fits(self, value: int) -> bool:
        estimate = self._known[value] = self._estimate(value)
        return estimate.fits

    def _estimate(self, value: int) -> Estimate:
        self._estimator.progress.looking_at(f"{self._knob} {value}")
        candidate = self._candidate(value)
        facts = self._of_length()
        return dataclasses.replace(self._estimator, facts=facts).estimates([candidate])[
            candidate.key
        ]

    def _of_length(self) -> Facts:
        """Rows as long as the length that is tried: the data must not decide what could fit."""
        facts = self._estimator.facts
        if self._knob != "max_length":
            return facts
        return dataclasses.replace(facts, data=dataclasses.replace(facts.data, rows_measured=0))

    def _candidate(self, value: int) -> Candidate:
        steps = 2 if self._knob == MICRO_BATCH else self._default.gradient_accumulation_steps
        values = {**self._default.values, self._knob: value}
        return Candidate(values=values, gradient_accumulation_steps=steps)
