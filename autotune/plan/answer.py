"""The result of a plan: the configuration to use, what limits it, what was assumed. Pure."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.choices import Choice, is_safe
from autotune.space.knobs import DTYPE, GROUP, Candidate
from autotune.space.packages import packages_to_install
from autotune.space.sharding.sharding import DEEPSPEED, sharding_of
from autotune.space.trl_config import settings

SPEED_ERROR = 0.3
"""How far an estimated speed may be off. Of 28 published runs on one A100 it was 0.88 to 1.18 of
the measured one (`benchmarks/published_runs`); 39 trainings on H100 and H200, most of them at
their memory's limit, reached 0.70 to 1.30 of it, and one 1.34 (`benchmarks/recorded`). Of several
GPUs nothing was measured."""


def speed_error(estimate: Estimate, facts: Facts) -> float | None:
    """Return the relative error of the speed of an estimate; None: it is not known.

    Copies and exchange were never measured: they may be hidden altogether, or take twice as long.
    """
    if estimate.left_out or facts.device.maker != "NVIDIA":
        return None
    share = min(estimate.moved_share, _MOST_MOVED)
    return SPEED_ERROR + share / (1 - share)


_MOST_MOVED = 0.99
WORTH_NAMING = 1.02
"""Relative gain in speed from which on the answer says what keeps a candidate from being used."""


@dataclass(frozen=True, kw_only=True)
class OtherDtype:
    """The estimate of the same candidate with weights in another type."""

    dtype: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The configuration that a plan recommends.

    Attributes:
        choice: it.
        next_best: the choice after it, where that is safe, too.
        faster: the fastest choice that would be faster, but is not safe: memory limits the answer.
        epoch_s: seconds of an epoch, by estimate.
        job_s: of the whole job, without evaluation and saving.
        alternative: the same candidate with weights in another type, where nobody chose the type.
        packages: what it needs that is not on this machine.
    """

    choice: Choice
    next_best: Choice | None
    faster: Choice | None
    epoch_s: float | None
    job_s: float | None
    alternative: OtherDtype | None = None
    packages: tuple[str, ...] = ()


def answer_of(folded: Sequence[Choice], job: Job, facts: Facts) -> Answer | None:
    """Return the answer of a plan's choices, the best first; None: nothing fits."""
    if not folded or not folded[0].estimate.fits:
        return None
    first = folded[0]
    epoch_s, job_s = training_s(job, facts, first.candidate, first.estimate)
    return Answer(
        choice=first,
        next_best=folded[1] if len(folded) > 1 and is_safe(folded[1].estimate) else None,
        faster=_faster(folded, first.estimate.tokens_per_s),
        epoch_s=epoch_s,
        job_s=job_s,
        packages=tuple(packages_to_install(job, facts, first.candidate)),
    )


def _faster(folded: Sequence[Choice], speed: float | None) -> Choice | None:
    """Return the fastest choice that is clearly faster, but not safe; else the fastest such
    candidate that is folded into another's choice."""
    parts = [
        Choice(candidate=c.unsafe[0], estimate=c.unsafe[1], folded=1) for c in folded if c.unsafe
    ]
    for some in (folded, parts):
        unsafe = [choice for choice in some if not choice.safe and choice.estimate.tokens_per_s]
        fastest = max(unsafe, key=lambda choice: choice.estimate.tokens_per_s or 0.0, default=None)
        if fastest and speed and (fastest.estimate.tokens_per_s or 0.0) >= WORTH_NAMING * speed:
            return fastest
    return None


def in_other_dtype(job: Job, candidate: Candidate) -> Candidate | None:
    """Return the candidate with weights in float32 where they are in 16 bits by default, as a
    checkpoint is, and else in bfloat16. None where the job says the type, and for DeepSpeed, which
    computes with weights in the job's precision whatever they are loaded as."""
    held = candidate.values.get(DTYPE)
    if DTYPE in {*job.fixed, *job.recipe, *job.training} or held is None:
        return None
    if sharding_of(candidate.values, job.devices.total).distributed_type == DEEPSPEED:
        return None
    other = "bfloat16" if held == "float32" else "float32"
    return dataclasses.replace(candidate, values={**candidate.values, DTYPE: other})


def training_s(
    job: Job, facts: Facts, candidate: Candidate, estimate: Estimate
) -> tuple[float | None, float | None]:
    """Return (seconds of an epoch, seconds of the whole job), without evaluation and saving; None:
    not known."""
    if estimate.step_time_s is None or estimate.tokens_per_s is None:
        return None, None
    chosen = settings(job, facts, candidate)
    max_steps = int(chosen.config.get("max_steps") or 0)
    rows = candidate.global_batch * chosen.sharding.replicas
    if METHODS[job.method].online:
        group = candidate.values.get(GROUP)
        rows //= group if isinstance(group, int) else 1
    if chosen.config.get("packing"):
        epoch_s = facts.data.rows * facts.data.mean_length / estimate.tokens_per_s
    else:
        epoch_s = math.ceil(facts.data.rows / max(rows, 1)) * estimate.step_time_s
    if max_steps > 0:
        return epoch_s, max_steps * estimate.step_time_s
    return epoch_s, float(chosen.config["num_train_epochs"]) * epoch_s
