"""A memory limit below what a training process takes before it holds any of the model: nothing can
fit, and no change of the job helps. Said before the first probe."""

from autotune.job.job import Job
from autotune.plan.least_memory import LOWER_BOUND
from autotune.run.session import Result, Session
from autotune.search.recommend import NothingFits
from autotune.units import format_bytes

MIB = 2**20
SURE = 2.5
"""Standard deviations by which the process must be above the limit: on the CPU that leaves what a
process with the stack was measured to hold before it trains."""


def process_alone(session: Session) -> NothingFits | None:
    """Return why nothing can fit, where the process alone takes more than a candidate may; else
    None."""
    prior, job = session.expectations.prior, session.job
    process_bytes = prior.offset_bytes
    if any(
        record.measurement and record.measurement.outcome == "ok"
        for record in session.study.records()
    ):
        return None  # one came to its end
    if process_bytes - SURE * prior.sigma_bytes <= session.allowed_bytes:
        return None
    peaks = [
        # A bound leaves the process itself out.
        estimate.peak_memory_bytes + (process_bytes if estimate.method == LOWER_BOUND else 0)
        for estimate in session.expectations.estimates.values()
    ]
    smallest = round(min(peaks, default=process_bytes))
    return NothingFits(
        nearest=None,
        short_bytes=smallest - session.allowed_bytes,
        short_is_lower_bound=False,
        rejected={},
        why=f"the memory limit is too low: an empty training process needs about "
        f"{format_bytes(round(process_bytes))}, and there are {_what_there_is(session)}. The "
        f"smallest configuration needs an estimated {format_bytes(smallest)}: set at least "
        f"`devices.memory: {least_limit(smallest, job)}`",
    )


def least_limit(peak_bytes: int, job: Job) -> str:
    """Return the limit whose headroom leaves so much, as a job has it."""
    return f"{-int(-peak_bytes / (1 - job.headroom) // MIB)}MiB"


def without_probes(session: Session, nothing: NothingFits) -> Result:
    """Return what a run comes to that need not begin."""
    return Result(
        outcome="nothing_fits",
        records=tuple(session.study.records()),
        stop_reason="a training process alone takes more than the memory that is there",
        space_size=len(session.space.candidates),
        nothing_fits=nothing,
    )


def _what_there_is(session: Session) -> str:
    limit, share = format_bytes(session.limit_bytes), session.job.headroom
    if not share:
        return limit
    return f"{format_bytes(session.allowed_bytes)} ({limit} less the headroom of {share:.0%})"
