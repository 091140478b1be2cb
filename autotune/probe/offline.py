"""A probe of a trainer whose rows hold all it is trained on; the child's side (`worker.py`)."""

from typing import Any

from autotune.probe.memory import CpuMemory, CudaMemory
from autotune.probe.protocol import ProbeRequest
from autotune.probe.throughput import Preparation, Throughput, passes
from autotune.probe.worker import configured, reply_fields
from autotune.process.messages import ChildFolder
from autotune.training.spec import Unsupported

LAYOUT_KNOBS = ("attn_implementation", "padding_free", "packing", "dtype", "load_in_8bit")
"""What decides whether rows that are laid one behind the other see each other."""


def train_offline(
    request: ProbeRequest, folder: ChildFolder, memory: CpuMemory | CudaMemory, stages: Any
) -> tuple[dict[str, Any], Throughput]:
    """Train a few steps of the candidate: fields of a measurement, and its speed."""
    from autotune.probe.step_meter import Schedule, StepMeter
    from autotune.process.progress import Progress
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
        **reply_fields(meter, ranks, trainer),
        "micro_steps_measured": len(meter.steps),
        "tokens_per_epoch": steps.tokens_per_epoch,
        "before_training_s_per_token": preparation.seconds_per_token or None,
    }, meter.result


def _preparation(request: ProbeRequest, seconds_per_token: float) -> Preparation:
    """Return what is done once before the training, and how often the job goes over the data after
    it."""
    passes_over_data = passes(request.config, request.global_batch, request.rows_total)
    return Preparation(seconds_per_token / request.parsed_sharding.num_processes, passes_over_data)
