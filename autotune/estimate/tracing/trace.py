"""A few optimizer steps of the real trainer under FakeTensorMode: every allocation, no device.

The trainer is the one that probes use (`training/`): TRL's parser, TRL's trainer, the real
collator. Only its models have no storage, and its micro-batches have the shapes that were asked
for.
Runs in a child only.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader

from autotune.estimate.protocol import TracedTrainer, TraceReply, TraceRequest
from autotune.estimate.records import events as record
from autotune.estimate.records.layers import CHUNKS, LAYERS, Ends, Irregular
from autotune.estimate.tracing.engines import (
    engines_on_fake_tensors,
    fake_world,
    sharded_config,
)
from autotune.estimate.tracing.kernels.bitsandbytes import (
    name_packed,
    quantize,
    without_bitsandbytes,
)
from autotune.estimate.tracing.kernels.cuda import CudaRules
from autotune.estimate.tracing.kernels.flash_attention import flash_attention_installed
from autotune.estimate.tracing.kernels.liger import liger_installed
from autotune.estimate.tracing.patches import deepspeed_left_alone, fake_run
from autotune.estimate.tracing.phases import (
    ShardedStepPhases,
    StepPhases,
    chunks_watched,
    signatures,
    watch_layers,
)
from autotune.estimate.tracing.tracer import Tracer
from autotune.facts.row_formats import ROW_KINDS, turned_by_one
from autotune.job.methods import METHODS
from autotune.space.checkpointing import period_of
from autotune.space.sharding.sharding import Sharding
from autotune.training.family import Models
from autotune.training.patching import replaced
from autotune.training.quantized import built_whole
from autotune.training.registry import family
from autotune.training.spec import OF_THE_MACHINE, TrainerSpec

TRACE_OVERRIDES: dict[str, Any] = {
    "use_cpu": True,  # fake tensors of the CPU stand for those of the device
    "dataloader_num_workers": 0,
    "dataloader_pin_memory": False,
    "torch_compile": False,
}


def trace_steps(request: TraceRequest) -> TraceReply:
    """Run the steps of `request` on fake tensors.

    Raises:
        Irregular: fewer layers are asked for, and they cannot stand for all.
        Exception: whatever the stack raises where the candidate cannot be traced.
    """
    cuda = None if request.cuda is None else CudaRules(**request.cuda)
    sharding = None if request.sharding is None else Sharding(**request.sharding)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="autotune-trace-"))
        config = trace_config(request, min(request.micro_steps), Path(scratch))
        if sharding is not None:
            stack.enter_context(fake_world(sharding, request.rank))
            config = sharded_config(config, request.deepspeed, Path(scratch))
        stack.enter_context(flash_attention_installed(config.get("attn_implementation")))
        _, training, model = family(request.method).parse(config, Path(scratch))
        training.max_steps = len(request.steps)
        with built_whole():
            models = models_of(request, training, model)
        tracer = Tracer(models.policy.config.get_text_config().vocab_size, cuda)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(fake_run(tracer, cuda))
        stack.enter_context(without_bitsandbytes(on_cuda=cuda is not None))
        stack.enter_context(liger_installed(tracer, config))
        if sharding is None:
            stack.enter_context(deepspeed_left_alone())
        else:
            fp16 = bool(request.config.get("fp16"))
            stack.enter_context(
                engines_on_fake_tensors(tracer, sharding, on_cuda=cuda is not None, fp16=fp16)
            )
        trainer = _build(request, training, model, models, tracer)
        layers = watch_layers(tracer, inner_model(trainer.model))
        if models.reference is not None:
            watch_layers(tracer, models.reference)
        step_phases = (
            StepPhases(tracer, trainer, request.micro_steps)
            if sharding is None
            else ShardedStepPhases(tracer, trainer, request.micro_steps, sharding)
        )
        if request.method == "sft":
            stack.enter_context(chunks_watched(tracer))
        stack.enter_context(tracer)
        trainer.train()
        del trainer
    return TraceReply(
        events=tracer.finish(),
        layers=layers,
        chunks=_chunks(tracer.events, request.micro_steps),
        first_work=[work.row for work in step_phases.first_work],
        micro_work=[[w.row for w in step] for step in step_phases.micro_work],
        optimizer_work=[work.row for work in step_phases.optimizer_work],
        policy=dict(tracer.policy),
    )


def models_of(request: TracedTrainer, training: Any, model: Any) -> Models:
    """Return the models without storage, with as many layers as are asked for.

    Raises:
        Irregular: the whole model's layers are not like those.
    """

    def build() -> Models:
        models = family(request.method).models(trainer_spec(request), training, model, "meta")
        return quantize(models, model, on_cuda=request.cuda is not None)

    teacher = request.config.get("teacher_model_name_or_path")
    if teacher == request.model_path:  # one config cannot be cut in two ways
        teacher = None
    with _fewer_layers(request.layers, teacher):
        models = build()
    if request.layers is not None:
        full_models = build()
        sharded = isinstance(request, TraceRequest) and request.sharding is not None
        period = 1 if sharded else period_of(request.config)  # no layers of engines are copied
        layers, full_layers = signatures(models.policy), signatures(full_models.policy)
        alike = [module for module in full_models.modules() if module in full_models.alike]
        if len({len(signatures(module)) for module in alike}) != 1:
            raise Irregular("the models do not all have as many layers")
        blocks, all_blocks = _blocks(layers, period), _blocks(full_layers, period)
        copies = LAYERS.between(len(all_blocks)) if len(layers) == request.layers else 0
        if all_blocks != _copied(blocks, LAYERS, copies):
            raise Irregular("the model's layers do not all have the same parameters")
        if models.teacher is not None:
            few, whole = signatures(models.teacher), signatures(full_models.teacher)
            if len(few) != len(whole) and whole != _copied(few, CHUNKS, CHUNKS.between(len(whole))):
                raise Irregular("the teacher's layers do not all have the same parameters")
    return models


def _copied(layers: list[Any], ends: Ends, copies: int) -> list[Any]:
    """Return the layers of a whole model, of those of one of few."""
    return [*layers[: ends.first], *[layers[ends.first]] * copies, *layers[-ends.last :]]


def _blocks(layers: Sequence[Any], period: int) -> list[list[Any]]:
    """Return layers in blocks of so many; the last block may have fewer."""
    return [list(layers[start : start + period]) for start in range(0, len(layers), period)]


def trace_config(request: TracedTrainer, micro_steps: int, scratch: Path) -> dict[str, Any]:
    """Return the flat configuration of the traced trainer, with this many micro-steps."""
    given = {name: v for name, v in request.config.items() if name not in OF_THE_MACHINE}
    config = {**given, **family(request.method).overrides, **TRACE_OVERRIDES}
    config["gradient_accumulation_steps"] = micro_steps
    config["output_dir"] = str(scratch)
    if config.get("fp16"):  # needs a GPU; bf16 makes tensors of the same sizes
        config = {**config, "fp16": False, "bf16": True}
    return config


@contextlib.contextmanager
def _fewer_layers(layers: int | None, teacher: str | None) -> Iterator[None]:
    """Model configs read from now on have this many decoder layers; that of a teacher, whose layers
    are copied as chunks of a loss are, as few as that takes."""
    if layers is None:
        yield
        return
    original = transformers.AutoConfig.from_pretrained

    def read_config(*args: Any, **kwargs: Any) -> Any:
        config = original(*args, **kwargs)
        text = config.get_text_config()
        types = getattr(text, "layer_types", None)
        if args[:1] == (teacher,):
            if len(set(types or ())) <= 1 and text.num_hidden_layers > CHUNKS.smallest:
                text.num_hidden_layers = CHUNKS.smallest
                with contextlib.suppress(AttributeError):
                    text.layer_types = types and types[: CHUNKS.smallest]
            return config
        if types:
            with contextlib.suppress(AttributeError):  # some configs compute them
                text.layer_types = _few_types(types, layers)
        text.num_hidden_layers = layers
        return config

    with replaced(transformers.AutoConfig, "from_pretrained", read_config):
        yield


def _few_types(types: Sequence[str], layers: int) -> list[str]:
    """Return the kinds of the layers that are traced: the first ones, more like the last of these,
    and at the end the kind that they leave out, or else the last layer's.

    Raises:
        Irregular: they leave out more than one.
    """
    first = list(types[: LAYERS.first + 1])
    first += first[-1:] * (layers - 1 - len(first))
    left_out = [kind for kind in types if kind not in first]
    if len(set(left_out)) > 1:
        raise Irregular("the model's layers are of more kinds than are traced")
    return [*first, (left_out or types)[-1]]


def trainer_spec(request: TracedTrainer) -> TrainerSpec:
    """Return the trainer that is traced."""
    return TrainerSpec(method=request.method, config=request.config, model_path=request.model_path)


def materialize(model: Any, tracer: Tracer) -> None:
    """Give a model of the meta device fake storage, and count it as weights."""
    with tracer:
        model.to_empty(device="cpu")
        model.tie_weights()
        name_packed(model)
        for tensor in (*model.parameters(), *model.buffers()):
            tracer.follow(tensor, record.WEIGHTS, record.INIT, record.NOWHERE)
            tracer.count_as(tensor, record.WEIGHTS)


def _build(request: TraceRequest, training: Any, model: Any, models: Models, tracer: Tracer) -> Any:
    for module in models.modules():
        materialize(module, tracer)
    with tracer:
        trainer = family(request.method).trainer(
            trainer_spec(request), training, model, row_dataset(request), models
        )
        for parameter in trainer.model.parameters():
            tracer.count_as(parameter, record.WEIGHTS)
    feed(trainer, request)
    return trainer


def row_dataset(request: TraceRequest) -> Any:
    """Return rows of the asked lengths, one micro-batch behind the other."""
    from datasets import Dataset

    kind = ROW_KINDS[request.method]
    rows = []
    for step, times in zip(request.steps, request.micro_steps, strict=True):
        batch: list[Any] = kind.of_lengths(step.lengths, step.labelled)
        if request.method == "kto" and request.config.get("loss_type", "kto") == "kto":
            turned = turned_by_one([row["completion_ids"] for row in batch])
            batch = [
                {**row, "KL_completion_ids": ids} for row, ids in zip(batch, turned, strict=True)
            ]
        rows += batch * times
    dataset = Dataset.from_list(rows)
    if request.config.get("precompute_ref_log_probs"):
        for column in METHODS[request.method].reference:
            dataset = dataset.add_column(column, [0.0] * len(rows))
    return dataset


def feed(trainer: Any, request: TraceRequest) -> None:
    """Let the trainer's own collator form exactly the micro-batches that were asked for."""
    order, start = [], 0
    for step, times in zip(request.steps, request.micro_steps, strict=True):
        rows = len(step.lengths) // METHODS[request.method].sequences
        for _ in range(times):
            order.append(list(range(start, start + rows)))
            start += rows

    def loader() -> Any:
        # accelerate's own would fetch a batch ahead, into the step of another shape.
        data: Any = trainer.train_dataset
        return DataLoader(data, batch_sampler=order, collate_fn=trainer.data_collator)

    trainer.get_train_dataloader = loader
    if len(set(request.micro_steps)) > 1:
        _accumulate_by_turns(trainer, request.micro_steps)


def _accumulate_by_turns(trainer: Any, micro_steps: list[int]) -> None:
    """Let each optimizer step have a number of micro-steps of its own.

    The trainer steps where the number of all batches so far is a multiple of what accumulates.
    """
    fetch = trainer.get_batch_samples
    counts_and_ends = zip(micro_steps, accumulate(micro_steps), strict=True)

    def fetch_for_step(batches: Any, _: int, device: Any) -> Any:
        count, trainer.args.gradient_accumulation_steps = next(counts_and_ends)
        return fetch(batches, count, device)

    trainer.get_batch_samples = fetch_for_step


def inner_model(model: Any) -> Any:
    """Return the model without the adapters around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _chunks(events: list[Any], micro_steps: list[int]) -> list[int]:
    """Return the chunks of the loss met in each optimizer step."""
    chunks: list[int] = [0] * len(micro_steps)
    step_of = [step for step, times in enumerate(micro_steps) for _ in range(times)]
    micro = -1
    for event in events:
        if event[0] == record.PHASE:
            micro += event[1] == "micro-step"
        elif event[0] == record.ALLOCATE and event[5] < 0 <= micro:
            step = step_of[micro]
            chunks[step] = max(chunks[step], -event[5])
    return chunks
