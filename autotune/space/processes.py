"""How many processes train: one on each device that does. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.errors import Problem
from autotune.job import Job
from autotune.space.batch import divisors, nearest_values
from autotune.space.knobs import NUM_PROCESSES, Candidate


def processes_of(values: Mapping[str, Any], job: Job) -> int:
    """Processes of a candidate with these values: one a device, where no knob says otherwise."""
    number = values.get(NUM_PROCESSES, job.devices.count)
    assert isinstance(number, int)
    return number


def rows_of_step(candidate: Candidate, job: Job) -> int:
    """Rows of an optimizer step over all devices."""
    return candidate.global_batch * processes_of(candidate.values, job)


def process_counts(job: Job) -> list[int]:
    """Every number of processes that the job considers: what it pins or lists, else all devices.

    Fewer would only wait for work: with as many rows in an optimizer step, a process needs no less
    memory where there are fewer of them.
    """
    if NUM_PROCESSES in job.fixed:
        return [_whole(job.fixed[NUM_PROCESSES])]
    return [_whole(one) for one in job.recipe.get(NUM_PROCESSES, [job.devices.count])]


def processes_problem(job: Job) -> Problem | None:
    """More processes than devices."""
    most = job.devices.count
    above = [n for n in process_counts(job) if n > most]
    if not above:
        return None
    return Problem(
        where=NUM_PROCESSES,
        what=f"{above[0]} processes on {most} device(s): each needs one of its own",
        hint=f"at most {most}, or raise devices.count",
    )


def undivided(sequences: int, job: Job) -> Problem | None:
    """Rows of a global batch that some number of processes cannot share equally, with what can."""
    for count in process_counts(job):
        if sequences % count == 0:
            continue
        less = sequences // count * count
        rows = " or ".join(str(n) for n in (less, less + count) if n)
        fewer = nearest_values(count, [n for n in divisors(sequences) if n <= job.devices.count])
        others = " or ".join(f"`fixed: {{{NUM_PROCESSES}: {n}}}`" for n in fewer)
        return Problem(
            where="global_batch_size",
            what=f"{sequences} rows cannot be divided among {count} devices",
            hint=f"the nearest batches that can are {rows}; or train on other numbers: {others}",
        )
    return None


def _whole(value: Any) -> int:
    """Of values that are no whole numbers the loader speaks; here they count as one device."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
