"""How many processes train: one on each device that does. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.errors import Problem
from autotune.space.batch import divisors, nearest_values
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    USE_VLLM,
    VLLM_MODE,
    VLLM_SERVER,
    Candidate,
)


def rows_of_step(candidate: Candidate, devices: int) -> int:
    """Return rows of an optimizer step over all devices.

    Args:
        devices: of the job: one process on each, where no knob says otherwise.
    """
    processes = candidate.values.get(NUM_PROCESSES, devices)
    assert isinstance(processes, int)
    return candidate.global_batch * processes


def server_devices(values: Mapping[str, Any]) -> int:
    """Return how many of a job's devices are a candidate's server's; 0: none, or others than the
    job's."""
    if not values.get(USE_VLLM) or values.get(VLLM_MODE) != VLLM_SERVER:
        return 0
    return int(values.get(TENSOR_PARALLEL) or 0)


def processes_problem(shape: JobShape) -> Problem | None:
    """Return the problem of more processes than devices (or than a server leaves), or of a number
    that machines cannot share equally; None: there is none."""
    if shape.job.devices.nodes > 1 and (problem := _machines_problem(shape)) is not None:
        return problem
    limit = shape.training_devices
    excess = [n for n in shape.process_counts if n > limit]
    if not excess:
        return None
    if shape.shares_with_server:
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


def _machines_problem(shape: JobShape) -> Problem | None:
    """Return what several machines cannot share."""
    job, nodes = shape.job, shape.job.devices.nodes
    if job.fixed.get(USE_VLLM) is True:
        return Problem(
            where="devices.nodes",
            what=f"vLLM is planned on one machine, and devices.nodes is {nodes}",
            hint="leave one of them out",
        )
    uneven_counts = [n for n in shape.process_counts if n % nodes]
    if not uneven_counts:
        return None
    nearest = nearest_values(uneven_counts[0], [nodes * n for n in range(1, job.devices.count + 1)])
    return Problem(
        where=NUM_PROCESSES,
        what=f"{uneven_counts[0]} processes cannot be spread evenly over {nodes} machines",
        hint=f"choose {' or '.join(str(n) for n in nearest)}",
    )


def undivided(sequences: int, shape: JobShape) -> Problem | None:
    """Return rows of a global batch that some number of processes cannot share equally, with what
    can."""
    for count in shape.process_counts:
        if sequences % count == 0:
            continue
        smaller = sequences // count * count
        rows = " or ".join(str(n) for n in (smaller, smaller + count) if n)
        possible = [n for n in divisors(sequences) if n <= shape.training_devices]
        fewer = nearest_values(count, possible)
        pins = " or ".join(f"`fixed: {{{NUM_PROCESSES}: {n}}}`" for n in fewer)
        return Problem(
            where="global_batch_size",
            what=f"{sequences} rows cannot be divided among {count} devices",
            hint=f"the nearest batches that can are {rows}; or train on other numbers: {pins}",
        )
    return None
