"""Where the program is, marked for the tracer: the phase, the decoder layer, the chunk of a loss.

Phases are marked by callbacks of the trainer, which gather the work of each step, too. DeepSpeed's
engine steps by itself; it and FSDP hold more than a model's weights and gradients
(`ShardedStepPhases`). Layers are marked by hooks of their modules; in the backward pass a layer
begins when the gradient of its output arrives. Runs in a child only.
"""

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
import transformers

from autotune.estimate.records import events
from autotune.estimate.records.events import DATA, MICRO_STEP, STEP
from autotune.estimate.tracing.fused_head import token_chunks_watched
from autotune.estimate.tracing.tracer import Tracer
from autotune.facts.stack import fused_head
from autotune.space.sharding.sharding import Sharding
from autotune.training.patching import replaced, require


class StepPhases(transformers.TrainerCallback):
    """Tells the tracer what the trainer is doing, and gathers the work of each step."""

    def __init__(self, tracer: Tracer, trainer: Any, micro_steps: list[int]) -> None:
        self._tracer = tracer
        self._trainer = trainer
        self._last = set(accumulate(micro_steps))
        self.micro_work: list[list[events.Work]] = []
        self.first_work: list[events.Work] = []
        self.optimizer_work: list[events.Work] = []
        self._micro_steps = 0
        self._label_gradients(trainer.model)
        self._training_step_of_trainer = trainer.training_step
        trainer.training_step = self._training_step
        trainer.add_callback(self)

    def _label_gradients(self, model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p: self._tracer.count_as(p.grad, events.GRADIENTS)
                )

    def _training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.begin()
        loss = self._training_step_of_trainer(*args, **kwargs)
        self.end("clip")
        return loss

    def begin(self) -> None:
        """Begin a micro-step."""
        self._micro_steps += 1
        self._tracer.enter_phase(MICRO_STEP)
        self._tracer.works = [] if self._micro_steps in {1, *self._last} else None

    def end(self, following: str) -> None:
        """End the micro-step; the phase `following` begins."""
        last = self._micro_steps in self._last
        if last:
            self.micro_work.append(self._tracer.works or [])
        elif self._micro_steps == 1:
            self.first_work = self._tracer.works or []
        self._tracer.works = [] if last else None
        self._tracer.enter_phase(following)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Enter the phase in which the batches of the first step are fetched."""
        self._tracer.enter_phase(DATA)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Enter the phase in which the batches of the next step are fetched."""
        self._tracer.enter_phase(DATA)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Enter the phase of the optimizer's step: gradients are clipped."""
        self._tracer.enter_phase(STEP)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Count the optimizer's state, which is there now, and take the work of its step."""
        self.optimizer_work, self._tracer.works = self._tracer.works or [], None
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._tracer.belongs_with(value, parameter)
                    self._tracer.count_as(value, events.OPTIMIZER)
        self._tracer.enter_phase("zero_grad")


_MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
"""Fields of DeepSpeed's optimizers (stages 1, 2; 3): this rank's part of what is trained,
float32."""
_FLAT_GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer")
_HOST_GRADIENTS = ("accumulated_grads_in_cpu", "temp_grad_buffer_for_cpu_offload")
_RETURNING = ("param_buffer_of_bit16_for_cpu_offload_groups",)
"""Fields of stages 1 and 2 with the optimizer elsewhere: new weights on their way back to the
device."""


class ShardedStepPhases(StepPhases):
    """The phases where an engine keeps more than its model's weights and gradients."""

    def __init__(
        self, tracer: Tracer, trainer: Any, micro_steps: list[int], sharding: Sharding
    ) -> None:
        super().__init__(tracer, trainer, micro_steps)
        self._stepped = False
        trains_elsewhere = sharding.offload_optimizer_device != "none"
        self._states = events.HOST if trains_elsewhere else events.OPTIMIZER
        self._flat = events.HOST if trains_elsewhere else events.GRADIENTS
        weights_elsewhere = sharding.offload_param_device != "none"
        self._own_weights = events.HOST if weights_elsewhere else events.WEIGHTS

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Watch the engine, which is there now. What fake tensors left in cycles dies; real ones
        leave none."""
        gc.collect()
        if self._engine is not None:
            self._mark_engine_steps(self._engine)
        self._count()
        super().on_train_begin()

    def _mark_engine_steps(self, engine: Any) -> None:
        own_step = engine.step

        def step(*args: Any, **kwargs: Any) -> Any:
            last = engine.is_gradient_accumulation_boundary()
            self._count()
            if last:
                super(ShardedStepPhases, self).end("step")
            result = own_step(*args, **kwargs)
            if getattr(engine, "skipped_steps", 0):
                raise RuntimeError(
                    "DeepSpeed left an optimizer step out: it took unknown values for an overflow"
                )
            if last:
                self._stepped = True
                self._count()
            return result

        engine.step = step

    def end(self, following: str) -> None:
        """End the micro-step; where the engine has stepped already, its work has been taken."""
        if self._stepped:
            self._stepped = False
            self.optimizer_work, self._tracer.works = self._tracer.works or [], None
            self._tracer.enter_phase(following)
        else:
            self._count()
            super().end(following)

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Go on to the next phase: accelerate's wrapper around an engine has no state and no
        work."""
        if self._engine is None:
            super().on_optimizer_step(*args, **kwargs)
        else:
            self._tracer.enter_phase("zero_grad")

    @property
    def _engine(self) -> Any:
        return getattr(self._trainer, "deepspeed", None)

    def _count(self) -> None:
        """Put everything that lasts into its part."""
        for parameter in self._trainer.model.parameters():
            partition = getattr(parameter, "ds_tensor", None)
            if partition is not None:
                self._tracer.count_as(partition, self._own_weights)
            else:
                self._tracer.count_as(parameter, self._own_weights)
            if parameter.grad is not None:
                self._tracer.count_as(parameter.grad, events.GRADIENTS)
        zero = getattr(self._engine, "optimizer", None)
        for master in _tensors(_attributes(zero, _MASTERS)):
            self._tracer.count_as(master, self._states)
            if master.grad is not None:
                self._tracer.count_as(master.grad, self._flat)
        states = getattr(getattr(zero, "optimizer", None), "state", {})
        for tensor in _tensors(states.values()):
            self._tracer.count_as(tensor, self._states)
        for tensor in _tensors(_attributes(zero, (*_FLAT_GRADIENTS, *_HOST_GRADIENTS))):
            self._tracer.count_as(tensor, self._flat)
        for tensor in _tensors(_attributes(zero, _RETURNING)):
            self._tracer.count_as(tensor, self._states)


def _attributes(owner: Any, names: Iterable[str]) -> list[Any]:
    return [getattr(owner, name, None) for name in names]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists and dictionaries, at any depth."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


_CHUNKED_HOOKS = ("_chunk", "_chunked_cross_entropy_loss", "_CHUNKED_LM_HEAD_CHUNK_SIZE")


def decoder_layers(model: Any) -> Any:
    """Return the list of a model's decoder layers; None where it cannot be told."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    return None


def signatures(model: Any) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Return the names and shapes of the parameters of each decoder layer; empty where none can be
    told."""
    return [
        [(name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()]
        for layer in decoder_layers(model) or ()
    ]


def watch_layers(tracer: Tracer, model: Any, region_of: Callable[[int], int] = events.layer) -> int:
    """Mark what happens in each decoder layer; how many there are (0: not to be told)."""
    layers = decoder_layers(model)
    if layers is None:
        return 0
    for index, module in enumerate(layers):
        region = region_of(index)
        for tensor in (*module.parameters(), *module.buffers()):
            tracer.belongs_to(tensor, region)
        _watch(tracer, module, region, first=index == 0)
    return len(layers)


def _watch(tracer: Tracer, module: Any, region: int, *, first: bool) -> None:
    outside: list[int] = []

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        outside.append(tracer.region)
        tracer.region = region
        hidden = args[0] if args else kwargs.get("hidden_states")
        if first and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(lambda _: _set(tracer, events.NOWHERE))

    def leave(_: Any, args: Any, out: Any) -> None:
        tracer.region = outside.pop() if outside else events.NOWHERE
        hidden = out[0] if isinstance(out, tuple) else out
        if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(lambda _: _set(tracer, region))

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


def _set(tracer: Tracer, region: int) -> None:
    tracer.region = region


@contextlib.contextmanager
def chunks_watched(tracer: Tracer) -> Iterator[None]:
    """Mark what happens in each chunk of the loss of TRL's SFTTrainer: of its fused head; else of
    the chunked loss, or of the plain one's entropy.

    Raises:
        MissingHook: this TRL has none of them.
    """
    from trl.trainer import sft_trainer

    if fused_head():
        with token_chunks_watched(tracer):
            yield
        return
    require(sft_trainer, *_CHUNKED_HOOKS, "entropy_from_logits")
    chunk: Any = _marked_chunk(tracer, sft_trainer)
    loss: Any = _left_afterwards(tracer, sft_trainer._chunked_cross_entropy_loss)
    entropy = _left_afterwards(tracer, _marked_entropy(tracer, sft_trainer))
    with (
        replaced(sft_trainer, "_chunk", chunk),
        replaced(sft_trainer, "_chunked_cross_entropy_loss", loss),
        replaced(sft_trainer, "entropy_from_logits", entropy),
    ):
        yield


def _left_afterwards(tracer: Tracer, function: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        tracer.region = events.NOWHERE
        return result

    return marked


def _marked_chunk(tracer: Tracer, owner: Any) -> Callable[..., Any]:
    original, size = owner._chunk, owner._CHUNKED_LM_HEAD_CHUNK_SIZE

    def chunk(hidden: Any, weight: Any, bias: Any, labels: Any, *args: Any) -> Any:
        tracer.region = events.chunk(labels.storage_offset() // size)
        return original(hidden, weight, bias, labels, *args)

    return chunk


def _marked_entropy(tracer: Tracer, owner: Any) -> Callable[..., Any]:
    """Return the entropy with its chunks marked: each begins with its `log_softmax`."""
    original, log_softmax = owner.entropy_from_logits, F.log_softmax

    def entropy(*args: Any, **kwargs: Any) -> Any:
        numbers = itertools.count()

        def marked(*args: Any, **kwargs: Any) -> Any:
            tracer.region = events.chunk(next(numbers))
            return log_softmax(*args, **kwargs)

        with replaced(F, "log_softmax", marked):
            return original(*args, **kwargs)

    return entropy
