"""The largest micro-batch, or the longest rows, that fit a device."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import user_error
from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.cache import PlanCache
from autotune.plan.candidates import estimates_of
from autotune.plan.children import servers, traced_in_children
from autotune.plan.device import allocator_limit, device_facts, placed, planned_limit
from autotune.plan.variants import path_tasks
from autotune.probe.survey import survey
from autotune.process.run_folder import RunFolder
from autotune.process.server import ProbeServer
from autotune.space.bind import bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import MICRO_BATCH, Candidate

STARTS = {
    MICRO_BATCH: (1, 4, 16, 64, 256, 1024, 4096),
    "max_length": (512, 2048, 8192, 32768, 131072),
}
STEP = {MICRO_BATCH: 1, "max_length": 128}
"""`max_length` is told to the next lower multiple of 128."""


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
) -> Largest:
    """Look for the largest value of a knob with which the job's default candidate fits.

    The values are tried in growing steps, and then where the line through the two nearest peaks
    meets the limit: each is one estimate.
    """
    run = RunFolder(path=scratch)
    job, kind = placed(job, device)
    with servers(scratch, 1) as started:
        search = _Search(job, definition, run, started[0], knob, kind)
        return search.answer()


class _Search:
    def __init__(
        self,
        job: Job,
        definition: SpaceDefinition,
        run: RunFolder,
        server: ProbeServer,
        knob: str,
        kind: DeviceKind | None,
    ) -> None:
        self._job, self._run = job, run
        self._server, self._knob, self._kind = server, knob, kind
        self._facts = device_facts(survey(job, self._run, server), kind)
        self._limit = planned_limit(job, self._facts)
        self._default = bind(definition, job, self._facts).default()
        if knob == "max_length" and self._default.values.get("padding_free"):
            raise user_error(
                "without padding no row is cut to max_length, so no length is the largest",
                where="padding_free",
                hint="ask for the largest per_device_train_batch_size, or unpin padding_free",
            )
        if METHODS[job.method].online:
            raise user_error(
                f"the largest value is not looked for with `method: {job.method}`, where what is "
                "generated together moves with it",
                where="--max",
                hint="plan the space: `autotune plan job.yaml --fits`",
            )
        self._count = 0
        self._guesses = 0
        self._known: dict[int, Estimate] = {}

    def _starts(self) -> list[int]:
        """Values to try first: no rows longer than the model has positions for."""
        starts, most = list(STARTS[self._knob]), self._facts.model.max_positions
        if self._knob == MICRO_BATCH or most is None:
            return starts
        return [value for value in starts if value < most] + [most]

    def answer(self) -> Largest:
        """Look for it."""
        value, failed = 0, None
        for tried in self._starts():
            if not self._fits(tried):
                failed = tried
                break
            value = tried
        while failed is not None and failed - value > STEP[self._knob]:
            tried = self._between(value, failed)
            if self._fits(tried):
                value = tried
            else:
                failed = tried
        return Largest(
            knob=self._knob,
            value=value or None,
            estimate=self._known.get(value),
            too_large=failed,
            device=self._facts.device.name,
            limit_bytes=self._limit,
            bounded=failed is None,
            most_rows=self._default.global_batch,
        )

    def _between(self, value: int, failed: int) -> int:
        """Where the limit should be met; at times the middle, so that the gap surely closes."""
        step, share = STEP[self._knob], 0.5
        self._guesses += 1
        if value and self._guesses % 3:
            low, high = (self._known[n].peak_memory_bytes for n in (value, failed))
            share = (self._limit - low) / max(high - low, 1)
        guess = round((value + share * (failed - value)) / step) * step
        return min(max(guess, value + step), failed - step)

    def _fits(self, value: int) -> bool:
        estimate = self._known[value] = self._estimate(value)
        return estimate.fits

    def _estimate(self, value: int) -> Estimate:
        job, candidate = self._candidate(value)
        limit = allocator_limit(job, self._facts, self._limit)
        facts = self._of_length(value)
        tasks = path_tasks(
            job,
            facts,
            [candidate],
            rows=self._run.rows,
            limit=limit,
            cache=PlanCache.of_user().traces,
        )
        folder = self._run.path / "traces" / f"{self._count:03d}"
        self._count += 1
        replies = traced_in_children(tasks, [self._server], folder)
        return estimates_of(tasks, replies, job, facts, self._limit)[candidate.key]

    def _of_length(self, value: int) -> Facts:
        """Rows as long as is asked for: the data must not decide what could fit."""
        if self._knob != "max_length":
            return self._facts
        data = dataclasses.replace(self._facts.data, rows_measured=0)
        return dataclasses.replace(self._facts, data=data)

    def _candidate(self, value: int) -> tuple[Job, Candidate]:
        if self._knob == MICRO_BATCH:
            values = {**self._default.values, MICRO_BATCH: value}
            return self._job, Candidate(values=values, gradient_accumulation_steps=2)
        values = {**self._default.values, "max_length": value}
        steps = self._default.gradient_accumulation_steps
        return self._job, Candidate(values=values, gradient_accumulation_steps=steps)
