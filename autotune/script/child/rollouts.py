"""A probe inside a script whose trainer generates what it trains on: TRL's GRPO and RLOO."""

from collections.abc import Callable
from typing import Any

from autotune.probe.rollout_meter import MAX_CYCLES, WARM_UP_CYCLES, RolloutMeter
from autotune.process.progress import Progress
from autotune.space.knobs import ACCUMULATION, COMPLETION, GENERATION_BATCH, GROUP, MICRO_BATCH
from autotune.training.ranks import Ranks
from autotune.training.registry import family
from autotune.training.rollout_plan import dealt_order, rollout_of, rollout_plan
from autotune.training.spec import Unsupported

FIELDS = (MICRO_BATCH, ACCUMULATION, GENERATION_BATCH, GROUP, COMPLETION, "num_iterations")
PROMPTS = 1000
"""Prompts whose length is looked up."""


def train_rollouts(
    trainer: Any, train: Callable[[], Any], watch: Any, ranks: Ranks, progress: Progress
) -> tuple[Any, dict[str, Any]]:
    """Train a few cycles of generation and update; the meter, and fields of a measurement.

    Raises:
        Unsupported: the prompts are a stream.
    """
    args, data = trainer.args, trainer.train_dataset
    if not hasattr(data, "select"):
        raise Unsupported("prompts of a stream cannot be chosen by their length")
    config = {name: getattr(args, name) for name in FIELDS}
    rollout = rollout_of(config, devices=ranks.processes, seed=args.seed)
    step = max(len(data) // PROMPTS, 1)
    data = data.select(range(0, len(data), step))
    lengths = [_tokens(trainer.processing_class, prompt) for prompt in data["prompt"]]
    plan = rollout_plan(lengths, rollout, len(trainer.train_dataset))
    order = plan.timed + plan.longest * rollout.rounds + plan.timed * MAX_CYCLES
    cycles = WARM_UP_CYCLES + MAX_CYCLES
    args.max_steps = rollout.steps * cycles
    progress.tell("planned", micro_steps=cycles * rollout.rounds * rollout.micro_steps)
    progress.tell("built")
    trainer.train_dataset = data.select(dealt_order(order, rollout, ranks.processes))
    trainer.shuffle_dataset = False
    meter = RolloutMeter(
        plan,
        rollout,
        watch.memory,
        progress,
        watch.request.to_beat_tokens_per_s,
        peak=lambda _: int(watch.memory.figures()["peak_memory_bytes"]),
        elsewhere=bool(args.use_vllm),
        ranks=ranks,
    )
    with meter.follow(family("grpo"), trainer):
        train()
    return meter, {
        "micro_steps_measured": meter.micro_steps,
        "tokens_per_epoch": plan.tokens_per_epoch,
        **meter.peaks,
    }


def _tokens(tokenizer: Any, prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(text=prompt)["input_ids"])
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    return len(ids)
