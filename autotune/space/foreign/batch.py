"""The global batch of another tool's files, kept exactly. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from autotune.job.methods import SFT
from autotune.space.foreign.fields import CARRIED, MEMORY, NOTHING, SEARCHED
from autotune.space.foreign.launch import Launch, parallel_sizes
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import AXOLOTL
from autotune.space.job_shape import row_parts
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH
from autotune.space.sharding.sharding import CP_SIZE, DEEPSPEED, DISTRIBUTED_TYPE, FSDP, SP_SIZE

_DIVIDED = ("dp_shard_size", "dp_replicate_size")
"""Fields that say among how many devices rows are divided."""
_SHARED = {"context": (CP_SIZE, FSDP), "sequence": (SP_SIZE, DEEPSPEED)}
"""Ways in which processes share rows here, too: the knob, and the engine that it needs."""
_TOTAL, _MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a step.

    Attributes:
        micro: of a device's micro-batch.
        steps: micro-batches of a device.
        processes: devices.
        ways: devices among which rows are divided.
        inferred: whether the number of devices follows from the batch itself.
    """

    micro: int
    steps: int
    processes: int
    ways: int
    inferred: bool = False

    @classmethod
    def of(cls, reading: Reading, launch: Launch) -> Self:
        """Return what the files say together; where they contradict each other, that is a
        problem."""
        tool, total = reading.tool, launch.batch.get(_TOTAL)
        micro = _agreed(reading, tool.micro, launch.batch.get(_MICRO), tool.rows)
        steps = _agreed(reading, tool.accumulation, launch.batch.get(ACCUMULATION), tool.steps)
        micro, steps = reading.rows or (micro, steps)
        _refuse_batch_size(reading)
        given = [name for name in parallel_sizes() if reading.given(name)]
        sizes = {parallel_sizes()[name]: reading.counted(name, 1) for name in given}
        sizes = {**launch.parallel, **sizes}
        parallel, shared = math.prod(sizes.values()), row_parts(reading.job.get("fixed", {}))
        sized = math.prod(reading.counted(n, 1) for n in _DIVIDED) * parallel * shared
        processes, inferred = launch.processes or launch.machines, False
        if launch.processes is None and total is not None and total % (micro * steps) == 0:
            processes, inferred = total // (micro * steps) * parallel * shared, True
            text = f"devices: {processes} (DeepSpeed's `{_TOTAL}: {total}` says it)"
            reading.assumed.append(text)
        elif launch.processes is None and sized > 1:
            processes, inferred = sized, True
            reading.assumed.append(f"devices: {sized} (the product of the file's parallel sizes)")
        if processes % (parallel * shared):
            what = f"{processes} devices cannot be divided by {parallel * shared}"
            reading.refuse("num_processes", what)
        elif parallel > 1:
            _say_parallel(reading, sizes, (micro, micro * steps * processes // parallel), processes)
        ways = max(processes // parallel // shared, 1)
        if total is not None and total != micro * steps * ways:
            product = f"{micro} x {steps} x {ways} = {micro * steps * ways}"
            what = f"DeepSpeed's `{_TOTAL}: {total}` contradicts {product}"
            reading.refuse(_TOTAL, what, "write `auto` into DeepSpeed's file")
        return cls(micro=micro, steps=steps, processes=processes, ways=ways, inferred=inferred)


def share_rows(reading: Reading, launch: Launch) -> Launch:
    """Pin how many processes share each row, where accelerate's file says it of a training that
    does; return the launch without it."""
    for axis, (name, kind) in _SHARED.items():
        size, knob = launch.parallel.get(axis, 1), reading.definition.knob(name)
        theirs = launch.pins.get(DISTRIBUTED_TYPE)
        if knob is None or size == 1 or theirs != kind or reading.method.name != SFT.name:
            continue
        if size in (knob.choices or ()):
            reading.write(f"fixed.{name}", size)
            fates = tuple(
                replace(fate, kind=CARRIED, detail=f"fixed.{name}", changes="")
                if fate.field.endswith(f"parallelism_config_{name}")
                else fate
                for fate in launch.fates
            )
            left = {other: n for other, n in launch.parallel.items() if other != axis}
            return replace(launch, parallel=left, fates=fates)
    return launch


def _say_parallel(
    reading: Reading, sizes: Mapping[str, int], counts: tuple[int, int], devices: int
) -> None:
    """Say what a job is that has whole rows where devices shared them; refuse it where they are
    too few.

    Args:
        sizes: devices that share a row, by what they divide.
        counts: rows of a micro-batch, and of a step.
    """
    micro, rows = counts
    named = " and ".join(f"{axis} parallelism of {n}" for axis, n in sizes.items() if n > 1)
    what = f"{named}: not carried (accelerate's file divides rows), each device has whole rows"
    if rows % (micro * devices if reading.as_is else devices):
        more = f", and {rows} rows a step cannot be divided among {devices} devices"
        hint = (
            f"what fits can be asked of a like job: {devices} rows a step, without parallel "
            "sizes; it takes more memory of a GPU than their training"
        )
        where = ", ".join(name for name in parallel_sizes() if reading.given(name))
        reading.refuse(where or "parallelism_config", what + more, hint)
    else:
        reading.assumed.append(f"{what}, so a plan overstates a GPU's memory")


def _refuse_batch_size(reading: Reading) -> None:
    """Refuse Axolotl's `batch_size`, which its versions read differently."""
    steps = reading.tool.accumulation
    if reading.tool.file != AXOLOTL or reading.given("batch_size") is None:
        return
    if reading.given(steps) is not None:
        reading.leave("batch_size", NOTHING, f"`{steps}` goes before it")
        return
    what = "`batch_size` does not say how many micro-batches make a step"
    reading.refuse("batch_size", what, f"write {steps}")


def _agreed(reading: Reading, name: str, deepspeeds: int | None, default: int) -> int:
    """Return a number that the trainer's file says, or DeepSpeed's: transformers wants them to
    agree."""
    if reading.given(name) is None:
        return default if deepspeeds is None else deepspeeds
    value = reading.counted(name, default)
    if deepspeeds is not None and deepspeeds != value:
        what = f"`{name}: {value}`, and DeepSpeed's file says {deepspeeds}"
        reading.refuse(name, what, "write `auto` into DeepSpeed's file")
    return value


def set_rows(reading: Reading, rows: Rows) -> None:
    """Set the global batch of the job: what one device does, times the devices that share it."""
    micro, steps = reading.tool.micro, reading.tool.accumulation
    total = rows.micro * rows.steps * rows.ways
    reading.write("global_batch_size", total)
    reading.origins[("global_batch_size",)] = micro if micro in reading.data else steps
    product = f"global_batch_size {total} = {rows.micro} x {rows.steps} x {rows.ways}"
    if reading.as_is:
        reading.write(f"fixed.{MICRO_BATCH}", rows.micro)
        reading.end(micro, CARRIED, f"fixed.{MICRO_BATCH}; {product}")
    for name, value in ((micro, rows.micro), (steps, rows.steps)):
        reading.end(name, CARRIED if reading.as_is else SEARCHED, product)
        if reading.given(name) is None:
            reading.assumed.append(f"{name}: {value} (default of {reading.tool.name})")
    for name in parallel_sizes():
        reading.leave(name, MEMORY, "the global batch counts what is left")
