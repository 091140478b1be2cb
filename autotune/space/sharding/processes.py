"""How many processes train: one on each device that does. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from autotune.errors import Problem
from autotune.job.job import Job
from autotune.space.batch import divisors, nearest_values
from autotune.space.knobs import (
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    USE_VLLM,
    VLLM_MODE,
    VLLM_SERVER,
    Candidate,
)
from autotune.space.sharding.sharding import HPZ, SHARDING_KNOBS


def processes_of(values: Mapping[str, Any], job: Job) -> int:
    """Processes of a candidate with these values: one a device, where no knob says otherwise."""
    number = values.get(NUM_PROCESSES, job.devices.total)
    assert isinstance(number, int)
    return number


def rows_of_step(candidate: Candidate, job: Job) -> int:
    """Return rows of an optimizer step over all devices."""
    return candidate.global_batch * processes_of(candidate.values, job)


def process_counts(job: Job) -> list[int]:
    """Return every number of processes that the job considers: what it pins or lists, else all
    devices.

    Fewer would only wait for work: with as many rows in an optimizer step, a process needs no less
    memory where there are fewer of them. Beside a server that takes some of the devices it is every
    number that leaves one, and that all global batches can be divided by; the largest first.
    """
    if NUM_PROCESSES in job.fixed:
        return [_whole_number(job.fixed[NUM_PROCESSES])]
    if NUM_PROCESSES in job.recipe:
        return [_whole_number(value) for value in job.recipe[NUM_PROCESSES]]
    if not shares_with_server(job):
        return [job.devices.total]
    batches = [batch for batch in job.batches if isinstance(batch, int)]
    return [n for n in divisors(math.gcd(*batches) or 1) if n < job.devices.total][::-1]


def may_be_sharded(job: Job) -> bool:
    """True if a job has the knobs of `search_spaces/sharding.yaml`: with several devices always,
    with one where it asks for one of them, because ZeRO offloads for a single process, too. (Groups
    that hold weights once more are of several devices only.)"""
    names = job.fixed.keys() | job.recipe.keys()
    return job.devices.total > 1 or bool(names & (set(SHARDING_KNOBS) - {HPZ}))


def shares_with_server(job: Job) -> bool:
    """True if a vLLM server takes some of the job's devices: where there are several."""
    uses_server = job.fixed.get(USE_VLLM) is True and job.fixed.get(VLLM_MODE) == VLLM_SERVER
    return uses_server and job.devices.total > 1


def server_devices(values: Mapping[str, Any]) -> int:
    """Return how many of a job's devices are a candidate's server's; 0: none, or others than the
    job's."""
    if not values.get(USE_VLLM) or values.get(VLLM_MODE) != VLLM_SERVER:
        return 0
    return int(values.get(TENSOR_PARALLEL) or 0)


def processes_problem(job: Job) -> Problem | None:
    """Return the problem of more processes than devices (or than a server leaves), or of a number
    that machines cannot share equally; None: there is none."""
    if job.devices.nodes > 1 and (problem := _machines_problem(job)) is not None:
        return problem
    server_devices = shares_with_server(job)
    limit = job.devices.total - server_devices
    excess = [n for n in process_counts(job) if n > limit]
    if not excess:
        return None
    if server_devices:
        return Problem(
            where=NUM_PROCESSES,
            what=f"{excess[0]} processes on {limit + 1} devices leave none for the vLLM server",
            hint=f"at most {limit}; or `fixed: {{{VLLM_MODE}: colocate}}`",
        )
    return Problem(
        where=NUM_PROCESSES,
        what=f"{excess[0]} processes on {limit} device(s): each process needs a device of its own",
        hint=f"at most {limit}, or raise devices.count",
    )


def _machines_problem(job: Job) -> Problem | None:
    """Return what several machines cannot share."""
    nodes = job.devices.nodes
    if job.fixed.get(USE_VLLM) is True:
        return Problem(
            where="devices.nodes",
            what=f"vLLM is planned on one machine, and devices.nodes is {nodes}",
            hint="leave one of them out",
        )
    uneven_counts = [n for n in process_counts(job) if n % nodes]
    if not uneven_counts:
        return None
    nearest = nearest_values(uneven_counts[0], [nodes * n for n in range(1, job.devices.count + 1)])
    return Problem(
        where=NUM_PROCESSES,
        what=f"{uneven_counts[0]} processes cannot be spread evenly over {nodes} machines",
        hint=f"choose {' or '.join(str(n) for n in nearest)}",
    )


def undivided(sequences: int, job: Job) -> Problem | None:
    """Return rows of a global batch that some number of processes cannot share equally, with what
    can."""
    for count in process_counts(job):
        if sequences % count == 0:
            continue
        smaller = sequences // count * count
        rows = " or ".join(str(n) for n in (smaller, smaller + count) if n)
        limit = job.devices.total - shares_with_server(job)
        fewer = nearest_values(count, [n for n in divisors(sequences) if n <= limit])
        pins = " or ".join(f"`fixed: {{{NUM_PROCESSES}: {n}}}`" for n in fewer)
        return Problem(
            where="global_batch_size",
            what=f"{sequences} rows cannot be divided among {count} devices",
            hint=f"the nearest batches that can are {rows}; or train on other numbers: {pins}",
        )
    return None


def _whole_number(value: Any) -> int:
    """Return the number itself; a value that is not a whole number counts as 1 (the loader refuses
    it)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
