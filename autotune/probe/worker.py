"""The child's side of a probe: read the request, train, write the reply.

Runs in a process of its own, forked from the forkserver. What goes wrong here is named here, where
the exception is at hand; what cannot be named from inside (a kill, a hang) the parent names.
"""

import os
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.probe.memory import CpuMemory, CudaMemory, is_out_of_memory
from autotune.probe.protocol import (
    Failure,
    Measurement,
    ProbeFolder,
    ProbeRequest,
    read_json,
    write_json,
)
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.probe.meters import StepMeter
    from autotune.probe.throughput import Before


class Stages:
    """How long each stage took, and which one is running."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self._since = time.monotonic()

    def enter(self, name: str) -> None:
        """The running stage ends, `name` begins."""
        now = time.monotonic()
        self.seconds[self.current] = round(now - self._since, 4)
        self.current, self._since = name, now


class Unsupported(Exception):
    """This stack cannot do what the candidate asks."""


def probe(path: Path) -> None:
    """Train the candidate of `path/request.json` for a few steps and write `path/reply.json`."""
    folder = ProbeFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request) or {})
    os.environ.update(request.environment)
    memory: CpuMemory | CudaMemory | None = None
    stages = Stages()
    try:
        memory = _memory(request)
        measurement = _measure(request, folder, memory, stages)
    except BaseException as error:
        if memory is not None:
            memory.lift()
        measurement = _failed(request, memory, stages, error)
    stages.enter("end")
    data = {**measurement.plain(), "stages_s": stages.seconds}
    write_json(folder.reply, data)


def _memory(request: ProbeRequest) -> CpuMemory | CudaMemory:
    if request.device_kind == "cuda":
        return CudaMemory(request.memory_limit_bytes, request.device_index)
    return CpuMemory(request.memory_limit_bytes)


def _measure(
    request: ProbeRequest,
    folder: ProbeFolder,
    memory: CpuMemory | CudaMemory,
    stages: Stages,
) -> Measurement:
    import torch

    from autotune.probe.meters import Progress, Schedule, StepMeter
    from autotune.probe.throughput import Before, passes
    from autotune.training.batches import Rows, as_dataset, batching_of, plan
    from autotune.training.families import family

    torch.set_num_threads(request.threads)
    progress = Progress(folder.progress)
    stages.enter("plan")
    trains = family(request.method)
    accumulation = request.config["gradient_accumulation_steps"]
    # Gradients are in memory during the worst micro-batch exactly if there is one before it.
    shown = min(accumulation, 2)
    overrides = {
        **trains.overrides,
        "gradient_accumulation_steps": shown,
        "output_dir": str(folder.scratch),
    }
    _, training, model = trains.parse({**request.config, **overrides}, folder.scratch)
    batching = batching_of(
        request.method, request.config, global_batch=request.global_batch, seed=request.seed
    )
    rows = Rows(request.rows, request.method)
    steps = plan(rows, batching, request.rows_total, sampled=request.rows_sampled)
    schedule = Schedule(steps, shown)
    training.max_steps = schedule.steps
    progress.tell("planned", micro_batches=len(schedule.order))
    stages.enter("build")
    trainer = trains.trainer(request, training, model, as_dataset(schedule.batches(steps)))
    problem = trains.problem(trainer, batching)
    if problem is not None:
        raise Unsupported(problem)
    progress.tell("built")
    to_beat = request.to_beat_tokens_per_s
    often = passes(request.config, request.global_batch, request.rows_total)
    before = Before(trains.before_training_s(trainer), often)
    meter = StepMeter(steps, schedule, batching, accumulation, progress, to_beat, before)
    meter.attach(trainer)
    stages.enter("train")
    trainer.train()
    return _ended(request, memory, meter, steps.tokens_per_epoch, before)


def _ended(
    request: ProbeRequest,
    memory: CpuMemory | CudaMemory,
    meter: "StepMeter",
    tokens_per_epoch: float,
    before: "Before",
) -> Measurement:
    """What a training that came to its end took; it may have been too much."""
    assert meter.result is not None
    figures: dict[str, Any] = memory.figures()
    beyond = beyond_limit(figures["peak_memory_bytes"], request.memory_limit_bytes)
    return Measurement(
        outcome="oom" if beyond else "ok",
        reason=f"measured {len(meter.steps)} micro-steps"
        + (f", and ended {format_bytes(beyond)} above its memory limit" if beyond else ""),
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=beyond or None,
        micro_steps_measured=len(meter.steps),
        tokens_per_epoch=tokens_per_epoch,
        before_training_s_per_token=before.seconds_per_token or None,
        last_loss=meter.last_loss,
        gradient_norm=meter.gradient_norm,
        processor_wait_share=meter.processor_wait_share,
        **asdict(meter.result),
        **figures,
    )


def beyond_limit(peak_bytes: int | None, limit_bytes: int | None) -> int:
    """Bytes by which a probe that ended well took more than it was given; 0 where it did not.

    What enforces the limit does not see all that the peak counts: `RLIMIT_DATA` no pages of
    library code, the CUDA allocator nothing of what libraries take for themselves.
    """
    if peak_bytes is None or limit_bytes is None:
        return 0
    return max(peak_bytes - limit_bytes, 0)


def _failed(
    request: ProbeRequest,
    memory: CpuMemory | CudaMemory | None,
    stages: Stages,
    error: BaseException,
) -> Measurement:
    outcome = _outcome_of(error, stages.current)
    failure = Failure(
        type=type(error).__name__,
        message=str(error)[:4000],
        traceback="".join(traceback.format_exception(error))[-8000:],
        stage=stages.current,
    )
    figures: dict[str, Any] = memory.figures() if memory is not None else {}
    missing = memory.missing_bytes(error) if memory is not None and outcome == "oom" else None
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Measurement(
        outcome=outcome,
        reason=f"{failure.type} in stage {failure.stage}: {first_line[:300]}",
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=missing,
        failure=failure.plain(),
        **figures,
    )


def _outcome_of(error: BaseException, stage: str) -> str:
    """The outcome an exception stands for.

    A refusal while the trainer is put together is the stack's own word that it cannot do this;
    the same exception types during training are crashes.
    """
    if is_out_of_memory(error):
        return "oom"
    if type(error).__name__ == "NotFinite":
        return "unstable"
    refusals = (ImportError, ValueError, NotImplementedError, TypeError)
    if isinstance(error, Unsupported) or (
        stage in {"plan", "build"} and isinstance(error, refusals)
    ):
        return "unsupported"
    return "crash"
