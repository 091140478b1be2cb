"""The child's side of a probe: read the request, train, write the reply.

Runs in a process of its own, forked from the forkserver. What goes wrong here is named here, where
the exception is at hand; what cannot be named from inside (a kill, a hang) the parent names.
"""

import os
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.facts.stack import absent
from autotune.job.methods import METHODS
from autotune.probe.memory import CpuMemory, CudaMemory, with_vllm
from autotune.probe.outcome import beyond_limit, outcome_and_remark, outcome_of
from autotune.probe.protocol import Failure, Measurement, ProbeRequest
from autotune.probe.throughput import Preparation, RolloutSpeed, Throughput, passes
from autotune.process.memory_errors import missing_on_host, phase_of
from autotune.process.messages import ChildFolder, write_json
from autotune.process.progress import Progress
from autotune.training.spec import Place, Unsupported

LAYOUT_KNOBS = ("attn_implementation", "padding_free", "packing", "dtype", "load_in_8bit")
"""Knobs that decide whether rows without padding between them see each other."""


class Stages:
    """The stages of a probe: the seconds of each, and the current one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self._since = time.monotonic()

    def enter(self, name: str) -> None:
        """End the current stage, and begin stage `name`."""
        now = time.monotonic()
        self.seconds[self.current] = round(now - self._since, 4)
        self.current, self._since = name, now


def probe(folder: ChildFolder, request: ProbeRequest, place: Place | None = None) -> None:
    """Train a candidate for a few steps and write the reply.

    Args:
        place: the place of this process, where it is one of several ranks.
    """
    os.environ.update(request.environment)
    memory: CpuMemory | CudaMemory | None = None
    stages = Stages()
    try:
        memory = _memory(request, place)
        measurement = _measure(request, folder, memory, stages, place)
    except BaseException as error:
        if memory is not None:
            memory.lift()
        measurement = failed_measurement(
            error,
            stages.current,
            request.device_kind,
            memory,
            request.memory_limit_bytes,
            {} if memory is None else with_vllm(memory.figures(), request),
        )
    stages.enter("end")
    data = {**measurement.plain(), "stages_s": stages.seconds}
    write_json(folder.reply, data)


def _memory(request: ProbeRequest, place: Place | None) -> CpuMemory | CudaMemory:
    if request.device_kind == "cuda":
        rank = place.local_rank if place else 0
        if place:  # the allocator's limit is set on the current device
            import torch

            torch.cuda.set_device(rank)
        index = [request.device_index, *request.peers][rank]
        return CudaMemory(request.process_limit_bytes, index)
    return CpuMemory(request.process_limit_bytes)


def _measure(
    request: ProbeRequest,
    folder: ChildFolder,
    memory: CpuMemory | CudaMemory,
    stages: Stages,
    place: Place | None,
) -> Measurement:
    """Return the measurement of a training that came to its end; it may have taken too much."""
    import torch

    torch.set_num_threads(request.threads)
    if place is not None:
        from autotune.training.distributed import join

        stages.enter("join")
        join(place, request.parsed_sharding, cuda=request.device_kind == "cuda")
    train = _train_online if METHODS[request.method].online else _train_offline
    fields, speed = train(request, folder, memory, stages)
    figures = with_vllm(memory.figures(), request, fields.get("resident_bytes"))
    beyond_bytes = beyond_limit(figures["peak_memory_bytes"], request.memory_limit_bytes)
    outcome, remark = outcome_and_remark(beyond_bytes, figures["allocator_retries"] or 0)
    return Measurement(
        outcome=outcome,
        reason=f"measured {fields['micro_steps_measured']} micro-steps{remark}",
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=beyond_bytes or None,
        **fields,
        **asdict(speed),
        **figures,
    )


def _unloaded_kernel(error: BaseException) -> str:
    """Return what transformers does not say where it finds no FlashAttention: it was to come from
    the hub, which did not answer."""
    there = isinstance(error, ImportError) and "FlashAttention" in str(error)
    if not there or "kernels" in absent():
        return ""
    return " (the package kernels is, but what it loads from the hub did not come: no network?)"


def failed_measurement(
    error: BaseException,
    stage: str,
    device_kind: str,
    memory: CpuMemory | CudaMemory | None,
    limit_bytes: int | None,
    figures: dict[str, Any],
) -> Measurement:
    """Return the measurement of a training that an error has ended in a stage.

    Args:
        memory: of its process; None: the error came before it was watched.
        figures: of the memory until then.
    """
    outcome = outcome_of(error, stage, device_kind)
    failure = Failure(
        type=type(error).__name__,
        message=f"{error}{_unloaded_kernel(error)}"[:4000],
        traceback="".join(traceback.format_exception(error))[-8000:],
        stage=stage,
        knobs=getattr(error, "knobs", []),
    )
    missing = memory.missing_bytes(error) if memory is not None and outcome == "oom" else None
    if outcome == "host_oom":
        missing = missing_on_host(error)
    where = f"stage {failure.stage}"
    if failure.stage == "train" and outcome in ("oom", "host_oom") and (phase := phase_of(error)):
        where = f"the {phase}"
    first_line = (failure.message.strip().splitlines() or [type(error).__name__])[0]
    return Measurement(
        outcome=outcome,
        reason=f"{failure.type} in {where}: {first_line[:300]}",
        memory_limit_bytes=limit_bytes,
        missing_bytes=missing,
        failure=failure.plain(),
        **figures,
    )


def _train_offline(
    request: ProbeRequest, folder: ChildFolder, memory: CpuMemory | CudaMemory, stages: Any
) -> tuple[dict[str, Any], Throughput]:
    """Train a few steps on rows that hold all there is to learn; return fields of a measurement,
    and its speed."""
    from autotune.probe.step_meter import Schedule, StepMeter
    from autotune.training.batch_plan import Rows, as_dataset, batching_of, plan
    from autotune.training.ranks import Ranks
    from autotune.training.registry import family

    progress = Progress(folder.progress)
    stages.enter("plan")
    trains = family(request.method)
    accumulation = request.config["gradient_accumulation_steps"]
    # Gradients are in memory during the worst micro-batch exactly if there is one before it.
    micro_steps = min(accumulation, 2)
    ranks = Ranks.of(request, micro_steps)
    training, model = configured(
        trains, request, ranks, folder.scratch, gradient_accumulation_steps=micro_steps
    )
    batching = batching_of(
        request.method, request.config, global_batch=request.global_batch, seed=request.seed
    )
    rows = Rows(request.rows, request.method)
    steps = plan(rows, batching, request.rows_total, sampled=request.rows_sampled)
    schedule = Schedule(steps, micro_steps)
    training.max_steps = schedule.steps
    progress.tell("planned", micro_steps=len(schedule.order))
    stages.enter("build")
    batches = ranks.for_all_ranks(schedule.batches(steps))
    trainer = trains.trainer(request, training, model, as_dataset(batches))
    problem = trains.problem(trainer, batching)
    if problem is not None:
        raise Unsupported(problem, knobs=LAYOUT_KNOBS)
    progress.tell("built")
    preparation = _preparation(request, trains.before_training_s(trainer))
    to_beat = request.to_beat_tokens_per_s
    meter = StepMeter(
        steps, schedule, batching, accumulation, progress, memory, to_beat, preparation, ranks
    )
    meter.attach(trainer)
    stages.enter("train")
    trainer.train()
    assert meter.result is not None
    return {
        **_reply_fields(meter, ranks, trainer),
        "micro_steps_measured": len(meter.steps),
        "tokens_per_epoch": steps.tokens_per_epoch,
        "before_training_s_per_token": preparation.seconds_per_token or None,
    }, meter.result


def _preparation(request: ProbeRequest, seconds_per_token: float) -> Preparation:
    """Return the work before the training, and how often the job goes over the data after it."""
    passes_over_data = passes(request.config, request.global_batch, request.rows_total)
    return Preparation(seconds_per_token / request.parsed_sharding.num_processes, passes_over_data)


def _train_online(
    request: ProbeRequest, folder: ChildFolder, memory: CpuMemory | CudaMemory, stages: Any
) -> tuple[dict[str, Any], RolloutSpeed]:
    """Generate and train a few cycles; return fields of a measurement, and its speed."""
    from autotune.probe.rollout_meter import MAX_CYCLES, WARM_UP_CYCLES, RolloutMeter
    from autotune.training.batch_plan import Rows, raw_rows
    from autotune.training.ranks import Ranks
    from autotune.training.registry import family
    from autotune.training.rollout_plan import dealt_order, rollout_of, rollout_plan

    progress = Progress(folder.progress)
    stages.enter("plan")
    trains = family(request.method)
    ranks = Ranks.of(request)
    rollout = rollout_of(request.config, devices=ranks.processes, seed=request.seed)
    lengths = Rows(request.rows, request.method).longest
    plan = rollout_plan(lengths, rollout, request.rows_total)
    order = plan.timed + plan.longest * rollout.rounds + plan.timed * MAX_CYCLES
    training, model = configured(trains, request, ranks, folder.scratch)
    cycles = WARM_UP_CYCLES + MAX_CYCLES
    training.max_steps = rollout.steps * cycles
    progress.tell("planned", micro_steps=cycles * rollout.rounds * rollout.micro_steps)
    stages.enter("build")
    rows = raw_rows(request.rows).select(dealt_order(order, rollout, ranks.processes))
    trainer = trains.trainer(request, training, model, rows)
    progress.tell("built")

    def peak(resident_bytes: int) -> int | None:
        figures = with_vllm(memory.figures(), request, resident_bytes)
        whole: int | None = figures["peak_memory_bytes"]
        return whole

    meter = RolloutMeter(
        plan,
        rollout,
        memory,
        progress,
        request.to_beat_tokens_per_s,
        peak=peak,
        elsewhere=bool(request.config.get("use_vllm")),
        ranks=ranks,
    )
    stages.enter("train")
    with meter.follow(trains, trainer):
        trains.train(trainer)
    assert meter.result is not None
    return {
        **_reply_fields(meter, ranks, trainer),
        "micro_steps_measured": meter.micro_steps,
        "tokens_per_epoch": plan.tokens_per_epoch,
        "generation_parts": getattr(getattr(trainer, "vllm_generation", None), "parts", None),
        **meter.peaks,
    }, meter.result


def configured(
    trains: Any, request: ProbeRequest, ranks: Any, scratch: Path, **fields: Any
) -> tuple[Any, Any]:
    """Return the arguments of the method and of its model, as a rank of the probe has them.

    Args:
        trains: the method's `Family`.
        ranks: the rank's `Ranks`.
        fields: fields that this probe sets.
    """
    overrides = {**trains.overrides, **ranks.overrides, **fields, "output_dir": str(scratch)}
    _, training, model = trains.parse({**request.config, **overrides}, scratch)
    return training, model


def _reply_fields(meter: Any, ranks: Any, trainer: Any) -> dict[str, Any]:
    """Return fields of a measurement that a meter of any method knows."""
    return {
        "engine": ranks.checked_engine(trainer),
        "last_loss": meter.last_loss,
        "gradient_norm": meter.gradient_norm,
        "processor_wait_share": meter.processor_wait_share,
    }
