"""What a job implies, worked out once: devices, processes, global batches; and why its processes
cannot share them. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

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
from autotune.space.sharding.sharding import CP_SIZE, SHARDING_KNOBS, SP_SIZE


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """Numbers and facts that follow from a job alone.

    Attributes:
        devices: of all machines.
        shares_with_server: whether a vLLM server takes some of the devices: where there are
            several.
        process_counts: every number of processes that the job considers, the largest first where
            nobody chose them.
        may_be_sharded: whether the job has the knobs of `search_spaces/sharding.yaml`: with several
            devices always, with one where it asks for one of them, because ZeRO offloads for a
            single process, too.
    """

    job: Job
    devices: int
    shares_with_server: bool
    process_counts: tuple[int, ...]
    may_be_sharded: bool

    @classmethod
    def of(cls, job: Job) -> Self:
        """Work out the shape of a job."""
        devices = job.devices.total
        uses_server = job.fixed.get(USE_VLLM) is True and job.fixed.get(VLLM_MODE) == VLLM_SERVER
        pins = job.fixed.keys() | job.recipe.keys()
        return cls(
            job=job,
            devices=devices,
            shares_with_server=uses_server and devices > 1,
            process_counts=_process_counts(job, shares_with_server=uses_server and devices > 1),
            may_be_sharded=devices > 1 or bool(pins & set(SHARDING_KNOBS)),
        )

    @cached_property
    def replica_counts(self) -> tuple[int, ...]:
        """Every number of groups of processes with rows of their own that the job considers."""
        job = self.job
        sizes = [
            [job.fixed[name]] if name in job.fixed else job.recipe.get(name, [1])
            for name in (CP_SIZE, SP_SIZE)
        ]
        parts = {_whole_number(c) * _whole_number(s) for c in sizes[0] for s in sizes[1]}
        counts = {n // part: None for n in self.process_counts for part in sorted(parts)}
        return tuple(count for count in counts if count) or (1,)

    @property
    def training_devices(self) -> int:
        """Devices that can train: all but one where a server needs one."""
        return self.devices - self.shares_with_server

    @cached_property
    def global_batches(self) -> frozenset[int]:
        """Sequences of an optimizer step, of every batch and length that may be chosen."""
        lengths = self.job.recipe.get("max_length", [self.job.max_length])
        sizes = {
            self.job.with_batch(batch).batch_sequences(n)
            for batch in self.job.batches
            for n in lengths
            if n is None or isinstance(n, int)
        }
        return frozenset(size for size in sizes if size)

    def processes(self, values: Mapping[str, Any]) -> int:
        """Return the processes of a candidate with these values: one a device, where no knob says
        otherwise."""
        number = values.get(NUM_PROCESSES, self.devices)
        assert isinstance(number, int)
        return number

    def replicas(self, values: Mapping[str, Any]) -> int:
        """Return the groups of processes that have rows of their own; at least one."""
        return self.processes(values) // row_parts(values) or 1

    def pinned_or_listed(self, knob: str) -> bool:
        """True if the job itself says which values a knob may have."""
        return knob in self.job.fixed or knob in self.job.recipe


def _process_counts(job: Job, *, shares_with_server: bool) -> tuple[int, ...]:
    """Return the numbers that the job pins or lists, else all devices.

    Fewer would only wait for work: with as many rows in an optimizer step, a process needs no less
    memory where there are fewer of them. Beside a server that takes some of the devices it is every
    number that leaves one, and that all global batches can be divided by; the largest first.
    """
    if NUM_PROCESSES in job.fixed:
        return (_whole_number(job.fixed[NUM_PROCESSES]),)
    if NUM_PROCESSES in job.recipe:
        return tuple(_whole_number(value) for value in job.recipe[NUM_PROCESSES])
    total = job.devices.total
    if not shares_with_server:
        return (total,)
    batches = [batch for batch in job.batches if isinstance(batch, int)]
    return tuple(n for n in divisors(math.gcd(*batches) or 1) if n < total)[::-1]


def _whole_number(value: Any) -> int:
    """Return the number itself; a value that is not a whole number counts as 1 (the loader refuses
    it)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def rows_of_step(candidate: Candidate, devices: int) -> int:
    """Return rows of an optimizer step over all devices.

    Args:
        devices: of the job: one process on each, where no knob says otherwise.
    """
    processes = candidate.values.get(NUM_PROCESSES, devices)
    assert isinstance(processes, int)
    return candidate.global_batch * (processes // row_parts(candidate.values))


def row_parts(values: Mapping[str, Any]) -> int:
    """Return the number of processes that share the tokens of each row."""
    return _whole_number(values.get(CP_SIZE, 1)) * _whole_number(values.get(SP_SIZE, 1))


def server_devices(values: Mapping[str, Any]) -> int:
    """Return the number of the job's devices that a candidate's server takes; 0: it has none, or
    devices of its own."""
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
    """Return the problem of processes that several machines cannot share."""
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
    """Return the problem of a global batch that some number of processes cannot share equally, with
    the nearest values that they can."""
    for count in shape.replica_counts:
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
