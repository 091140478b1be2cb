"""Groups of processes that hold all of ZeRO-3's weights once more among them (ZeRO++, hpZ). Pure.

A group that is one machine gathers weights over its own links, where stage 3 alone gathers them
over the network each time; each process holds its part of them twice, the second time a group's
part. Ranks of a machine are neighbours (`accelerate launch` counts them machine by machine), and
DeepSpeed makes groups of neighbours.

Sources: Wang et al., "ZeRO++" (arXiv:2306.10209), section 3.2; DeepSpeed 0.19.8, `utils/groups.py`
(`_create_zero_param_parallel_group`: the size divides the processes, else it fails; and it can be
called once only, which a second model that is built under `zero.Init` does again: seen with DPO's
reference in two real ranks), `runtime/zero/partition_parameters.py` (`_partition_param_sec`: the
second part lies where weights are offloaded to).
"""

from collections.abc import Mapping
from typing import Any

from autotune.errors import Problem
from autotune.space.batch import divisors
from autotune.space.job_shape import JobShape
from autotune.space.reference_model import has_reference
from autotune.space.sharding.sharding import HPZ


def group_sizes(shape: JobShape) -> list[int]:
    """1, which is none; where there are several machines, also the processes of one."""
    nodes = shape.job.devices.nodes
    counts = {count // nodes for count in shape.process_counts if count % nodes == 0}
    return [1, *sorted(counts - {1})] if nodes > 1 else [1]


def groups_problem(shape: JobShape) -> Problem | None:
    """Return a size that was asked for, which divides no number of processes of the job."""
    sizes = shape.job.recipe.get(HPZ, [shape.job.fixed.get(HPZ, 1)])
    counts = shape.process_counts
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            continue  # the loader speaks of it
        if any(_divides(size, count) for count in counts):
            continue
        largest = max(counts)
        valid = [str(n) for n in divisors(largest) if n < largest] or ["1"]
        return Problem(
            where=HPZ,
            what=f"groups of {size} do not divide {largest} processes into several",
            hint=f"choose {' or '.join(valid)}",
        )
    return None


def group_problem(shape: JobShape, values: Mapping[str, Any]) -> str | None:
    """Return why a candidate's weights cannot be held once more as it says; None: they can."""
    job, size, count = shape.job, values.get(HPZ, 1), shape.processes(values)
    if size == 1:
        return None
    if not _divides(size, count):
        return f"groups of {size} do not divide {count} processes into several"
    if job.reward_model_path is not None or has_reference(job, {**job.training, **values}):
        return (
            "DeepSpeed makes its groups for one model, and fails at a second one (a reference, or "
            "one that rewards)"
        )
    return None


def _divides(size: int, count: int) -> bool:
    """True if there are several groups; one of all processes would hold what stage 3 does."""
    return size == 1 or (size < count and count % size == 0)
