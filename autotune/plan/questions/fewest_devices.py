"""The fewest devices that would do: plans for more and more of them, until something is safe."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UserError, user_error
from autotune.job.job import Job
from autotune.plan.choices import is_safe
from autotune.plan.plan import Plan, plan
from autotune.plan.progress import Progress
from autotune.plan.trace_choice import Effort
from autotune.space.definition import SpaceDefinition
from autotune.space.job_shape import JobShape
from autotune.space.knobs import NUM_PROCESSES
from autotune.space.sharding.sharding import (
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    SHARDING_KNOBS,
    ZERO_FIELDS,
)

COUNTS = (1, 2, 4, 8, 16, 32, 64)
BEST = Effort(first=1, settled=True)
"""The effort of these plans: only the fastest candidate that fits is shown."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One number of devices: its plan, or why it has none."""

    devices: int
    plan: Plan | None
    problem: str | None = None
    left_out: tuple[str, ...] = ()
    """Knobs that the job pins or lists and one device has no use for."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that the fastest fitting candidate needs and this machine lacks."""
        return () if self.plan is None or self.plan.answer is None else self.plan.answer.packages

    @property
    def safe(self) -> bool:
        """True if some candidate hardly ever runs out of memory."""
        return self.plan is not None and any(map(is_safe, self.plan.estimates.values()))

    @property
    def fits(self) -> bool:
        """True if some candidate more likely fits than not."""
        return self.plan is not None and any(
            estimate.fits for estimate in self.plan.estimates.values()
        )


def fewest(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None,
    assume: bool = True,
    progress: Progress | None = None,
) -> list[Tried]:
    """Plan for 1, 2, 4, ... devices up to the first number on which something is safe.

    Beside a vLLM server one is not enough. Numbers among which the global batch cannot be divided
    exactly are passed over, and say so.

    Raises:
        UserError: no kind of GPU is named; or the job cannot be on any number of devices.
    """
    if device in (None, "cpu"):
        raise user_error(
            "the fewest devices can only be planned for a kind of GPU",
            where="--of devices",
            hint="add --device with a GPU, such as h100",
        )
    if NUM_PROCESSES in job.fixed or NUM_PROCESSES in job.recipe:
        raise user_error(
            f"`{NUM_PROCESSES}` is the value that is searched for",
            where="--of devices",
            hint=f"leave `{NUM_PROCESSES}` out of the job",
        )
    tried: list[Tried] = []
    for count in COUNTS[1:] if served(job) else COUNTS:
        folder = scratch / str(count)
        tried.append(_tried(job, definition, folder, device, count, assume, progress))
        if tried[-1].safe:
            break
    if all(count.plan is None for count in tried):
        raise user_error(tried[0].problem or "nothing can be planned", where="--of devices")
    return tried


def served(job: Job) -> bool:
    """True if a vLLM server needs one of the devices for itself."""
    two = job.model_copy(update={"devices": job.devices.model_copy(update={"count": 2})})
    return JobShape.of(two).shares_with_server


def _tried(
    job: Job,
    definition: SpaceDefinition,
    folder: Path,
    device: str | None,
    count: int,
    assume: bool,
    progress: Progress | None,
) -> Tried:
    devices = job.devices.model_copy(update={"count": count})
    left_out = _only_dividing(job) if count == 1 else ()
    pins, lists = (
        {name: value for name, value in knobs.items() if name not in left_out}
        for knobs in (job.fixed, job.recipe)
    )
    job = job.model_copy(update={"devices": devices, "fixed": pins, "recipe": lists})
    try:
        planned = plan(
            job,
            definition,
            folder,
            device=device,
            assume=assume,
            effort=BEST,
            progress=progress,
        )
    except UserError as error:
        text = "; ".join(problem.what for problem in error.problems)
        return Tried(devices=count, plan=None, problem=text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Tried(devices=count, plan=planned, left_out=left_out)


def _only_dividing(job: Job) -> tuple[str, ...]:
    """Return the knobs of a job that only divide a training; none where it offloads, which one
    device does as well."""
    requested = {**job.fixed, **job.recipe}
    offloads = [requested.get(name) for name in (OPTIMIZER_OFFLOAD, PARAM_OFFLOAD)]
    if any(offload not in (None, "none", ["none"]) for offload in offloads):
        return ()
    return tuple(name for name in (*SHARDING_KNOBS, *ZERO_FIELDS) if name in requested)
