"""The global batch of another tool's files, kept exactly. Pure."""

import math
from dataclasses import dataclass
from typing import Self

from autotune.errors import Problem
from autotune.space.foreign.launch import Launch
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import Tool
from autotune.space.knobs import ACCUMULATION

_PARALLEL = {
    "sequence_parallel_degree": "context",  # Axolotl's older name
    "context_parallel_size": "context",
    "tensor_parallel_size": "tensor",
    "tensor_parallel_dim": "tensor",
}
"""Fields that let several devices work on the same rows."""
_DIVIDED = ("dp_shard_size", "dp_replicate_size")
"""Fields that say among how many devices rows are divided."""
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
    def of(cls, reading: Reading, tool: Tool, launch: Launch) -> Self:
        """Return what the files say together; where they contradict each other, that is a
        problem."""
        micro = _agreed(reading, tool.micro, launch.batch.get(_MICRO), tool.rows)
        micro = reading.rows or micro
        deepspeed_steps = launch.batch.get(ACCUMULATION)
        steps = _agreed(reading, tool.accumulation, deepspeed_steps, tool.steps)
        _refuse_batch_size(reading, tool)
        of_trainer = {
            axis: reading.counted(n, 1) for n, axis in _PARALLEL.items() if reading.given(n)
        }
        parallel = math.prod({**launch.parallel, **of_trainer}.values())
        total = launch.batch.get(_TOTAL)
        processes, inferred = launch.processes or launch.machines, False
        if launch.processes is None and total is not None and total % (micro * steps) == 0:
            processes, inferred = total // (micro * steps) * parallel, True
            reading.assumed.append(
                f"devices: {processes} (DeepSpeed's `{_TOTAL}: {total}` says it)"
            )
        sized = math.prod(reading.counted(n, 1) for n in _DIVIDED) * parallel
        if launch.processes is None and not inferred and sized > 1:
            processes, inferred = sized, True
            reading.assumed.append(f"devices: {sized} (the product of the file's parallel sizes)")
        if processes % parallel:
            what = f"{processes} devices cannot be divided by {parallel}"
            reading.problems.append(Problem(where="num_processes", what=what))
        elif parallel > 1:
            _say_parallel(reading, micro, micro * steps * processes // parallel, processes)
        ways = max(processes // parallel, 1)
        if total is not None and total != micro * steps * ways:
            product = f"{micro} x {steps} x {ways} = {micro * steps * ways}"
            what = f"DeepSpeed's `{_TOTAL}: {total}` contradicts {product}"
            hint = "write `auto` into DeepSpeed's file"
            reading.problems.append(Problem(where=_TOTAL, what=what, hint=hint))
        return cls(micro=micro, steps=steps, processes=processes, ways=ways, inferred=inferred)


def _say_parallel(reading: Reading, micro: int, rows: int, devices: int) -> None:
    """Say what a job is that has whole rows where devices shared them; refuse it where they are
    too few."""
    what = "tensor and context parallelism are not built: a job's devices have whole rows each"
    if rows % (micro * devices if reading.as_is else devices):
        more = f", and {rows} rows a step cannot be divided among {devices} devices"
        hint = (
            f"what fits can be asked of a like job: {devices} rows a step, without parallel "
            "sizes; it takes more memory of a GPU than their training"
        )
        reading.problems.append(Problem(where="parallel sizes", what=what + more, hint=hint))
    else:
        reading.assumed.append(f"{what}, so a plan overstates a GPU's memory")


def _refuse_batch_size(reading: Reading, tool: Tool) -> None:
    """Refuse Axolotl's `batch_size`, which its versions read differently."""
    if reading.tool != "Axolotl" or reading.given("batch_size") is None:
        return
    if reading.given(tool.accumulation) is not None:
        reading.leave("batch_size", f"`{tool.accumulation}` goes before it")
        return
    what = "`batch_size` does not say how many micro-batches make a step"
    hint = f"write {tool.accumulation}"
    reading.problems.append(Problem(where="batch_size", what=what, hint=hint))


def _agreed(reading: Reading, name: str, deepspeeds: int | None, default: int) -> int:
    """Return a number that the trainer's file says, or DeepSpeed's: transformers wants them to
    agree."""
    if reading.given(name) is None:
        return default if deepspeeds is None else deepspeeds
    value = reading.counted(name, default)
    if deepspeeds is not None and deepspeeds != value:
        what = f"`{name}: {value}`, and DeepSpeed's file says {deepspeeds}"
        hint = "write `auto` into DeepSpeed's file"
        reading.problems.append(Problem(where=name, what=what, hint=hint))
    return value


def set_rows(reading: Reading, tool: Tool, rows: Rows) -> None:
    """Set the global batch of the job."""
    reading.set_batch(tool.micro, tool.accumulation, (rows.micro, rows.steps), rows.ways)
    for name in _PARALLEL:
        reading.leave(name, "a job spreads rows only; the global batch counts what is left")
