"""A probe inside a script: a few steps of its own trainer, timed by the meters of all probes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from autotune.facts.stack import canonical_name
from autotune.probe.outcome import beyond_limit, outcome_and_remark
from autotune.probe.protocol import Measurement
from autotune.probe.rollout_meter import MAX_CYCLES, WARM_UP_CYCLES, RolloutMeter
from autotune.probe.step_meter import Schedule, StepMeter
from autotune.process.progress import Progress
from autotune.script.child.look import CHECKPOINTING, checkpointing_of
from autotune.script.child.rows import FixedOrder, observed_size, row_lengths, row_plan
from autotune.space.knobs import ACCUMULATION, COMPLETION, GENERATION_BATCH, GROUP, MICRO_BATCH
from autotune.space.sharding.sharding import Sharding
from autotune.training.ranks import Ranks
from autotune.training.registry import family
from autotune.training.rollout_plan import dealt_order, rollout_of, rollout_plan
from autotune.training.spec import Unsupported

FIELDS = (MICRO_BATCH, ACCUMULATION, GENERATION_BATCH, GROUP, COMPLETION, "num_iterations")
PROMPTS = 1000
"""Prompts whose length is looked up."""


class ScriptMeter(StepMeter):
    """The meter of all probes, for micro-batches that somebody else's collator forms.

    Attributes:
        expected: fields that the candidate has.
        order: the rows that the trainer's own data loader asks for; None: a stream has none.
    """

    expected: Mapping[str, Any] = MappingProxyType({})
    order: FixedOrder | None = None

    def sizes(self, position: int, inputs: Any) -> tuple[int, int]:
        """Return (tokens, tokens with padding) as they came."""
        tokens, padded = observed_size(inputs)
        self._plan.note(position, tokens, padded)
        return tokens, padded

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Training begins; what the model checkpoints, and how many rows come at a time, is what
        the candidate says.

        Raises:
            Unsupported: it is not.
        """
        self._check_loader(more.get("train_dataloader"), int(args.train_batch_size))
        checkpoints = checkpointing_of(more.get("model"))
        wanted = next((self.expected[n] for n in CHECKPOINTING if n in self.expected), None)
        if None not in (checkpoints, wanted) and checkpoints != wanted:
            word = "on" if checkpoints else "off"
            raise Unsupported(
                f"the script has checkpointing {word} whatever its arguments say",
                knobs=["gradient_checkpointing"],
            )
        super().on_train_begin(args, state, control, **more)

    def _check_loader(self, loader: Any, size: int) -> None:
        """See that a loader takes `size` rows at a time. One that did not ask for the order of the
        probe is the script's own, and takes rows in its own."""
        sampler = getattr(loader, "batch_sampler", None)
        taken = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
        in_own_order = self.order is not None and not self.order.used
        if taken not in (None, size) or (taken is None and in_own_order):
            rows = "as many rows as it likes" if taken is None else f"{taken} rows"
            raise Unsupported(
                f"the script's own data loader takes {rows} at a time, whatever its arguments say "
                f"({size})",
                knobs=[MICRO_BATCH],
            )
        if in_own_order:
            self._plan.take_rows_as_they_come()


def measured(trainer: Any, train: Callable[[], Any], watch: Any) -> Measurement:
    """Return the measurement of a trainer's steps; it may have taken too much.

    Raises:
        Unsupported: the script sets a field of the candidate itself, or trains too few steps.
    """
    args, request = trainer.args, watch.request
    _check_fields(args, request.expected)
    watch.stages.enter("train")
    ranks = Ranks(sharding=Sharding(num_processes=int(args.world_size)))
    rank_files = watch.folder
    rank_files.path.mkdir(parents=True, exist_ok=True)
    file = watch.path / "progress.jsonl" if args.process_index == 0 else rank_files.progress
    progress = Progress(file)
    if hasattr(trainer, "_generate_and_score_completions"):
        meter, fields = train_rollouts(trainer, train, watch, ranks, progress)
    else:
        meter, fields = _train_rows(trainer, train, watch, ranks, progress)
    if meter.result is None:
        raise Unsupported("its training ended before its steps could be timed")
    figures = watch.memory.figures()
    limit = request.memory_limit_bytes
    beyond_bytes = beyond_limit(figures["peak_memory_bytes"], limit)
    outcome, remark = outcome_and_remark(beyond_bytes, figures["allocator_retries"] or 0)
    return Measurement(
        outcome=outcome,
        reason=f"measured {fields['micro_steps_measured']} micro-steps{remark}",
        memory_limit_bytes=limit,
        missing_bytes=beyond_bytes or None,
        engine=trainer.accelerator.distributed_type.value if ranks.processes > 1 else None,
        last_loss=meter.last_loss,
        gradient_norm=meter.gradient_norm,
        processor_wait_share=meter.processor_wait_share,
        **fields,
        **asdict(meter.result),
        **figures,
    )


def _check_fields(args: Any, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        found = getattr(args, name, value)
        found = False if found is None and isinstance(value, bool) else found
        if getattr(found, "value", found) != value:
            raise Unsupported(
                f"the script sets `{name}` itself: {found} in place of {value}",
                knobs=[canonical_name(name)],
            )


def _train_rows(
    trainer: Any, train: Callable[[], Any], watch: Any, ranks: Ranks, progress: Progress
) -> tuple[Any, dict[str, Any]]:
    """Train a few steps on rows of the data; the meter, and fields of a measurement."""
    args, request = trainer.args, watch.request
    rows = row_lengths(trainer.train_dataset)
    count = 0 if rows is None else len(trainer.train_dataset)
    size, micro_steps = int(args.train_batch_size), int(args.gradient_accumulation_steps)
    plan = row_plan(
        rows,
        count,
        size,
        global_batch=size * request.accumulation * ranks.processes,
        grouped=str(getattr(args, "train_sampling_strategy", "")) == "group_by_length",
        seed=args.seed,
    )
    schedule = Schedule(plan, micro_steps)
    progress.tell("planned", micro_steps=len(schedule.order))
    progress.tell("built")
    args.max_steps = schedule.steps
    order = None
    if rows is not None:
        order = FixedOrder([n for b in ranks.for_all_ranks(schedule.batches(plan)) for n in b])
        trainer._get_train_sampler = order.sampler
    meter = ScriptMeter(
        plan,
        schedule,
        None,
        request.accumulation,
        progress,
        watch.memory,
        request.to_beat_tokens_per_s,
        ranks=ranks,
    )
    meter.expected, meter.order = request.expected, order
    meter.attach(trainer)
    train()
    return meter, {
        "micro_steps_measured": len(meter.steps),
        "tokens_per_epoch": plan.tokens_per_epoch,
    }


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
