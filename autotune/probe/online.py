"""A probe of a trainer that generates what it is trained on; the child's side (`worker.py`)."""

from typing import Any

from autotune.probe.memory import CpuMemory, CudaMemory, with_vllm
from autotune.probe.protocol import ProbeRequest
from autotune.probe.throughput import RolloutSpeed
from autotune.probe.worker import configured, reply_fields
from autotune.process.messages import ChildFolder


def train_online(
    request: ProbeRequest, folder: ChildFolder, memory: CpuMemory | CudaMemory, stages: Any
) -> tuple[dict[str, Any], RolloutSpeed]:
    """Generate and train a few cycles of the candidate: fields of a measurement, and its speed."""
    from autotune.probe.rollout_meter import MAX_CYCLES, WARM_UP_CYCLES, RolloutMeter
    from autotune.process.progress import Progress
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
        whole: int | None = with_vllm(memory.figures(), request, resident_bytes)[
            "peak_memory_bytes"
        ]
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
        **reply_fields(meter, ranks, trainer),
        "micro_steps_measured": meter.micro_steps,
        "tokens_per_epoch": plan.tokens_per_epoch,
        "generation_parts": getattr(getattr(trainer, "vllm_generation", None), "parts", None),
        **meter.peaks,
    }, meter.result
