"""Tells the tracer in which decoder layer, or which chunk of a chunked loss, the program is.

Forward: module hooks. Backward: the gradient of a layer's output arrives when its backward begins.
Runs in a child only.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from autotune.estimate.records import events
from autotune.estimate.tracing.fused_head import token_chunks_watched
from autotune.estimate.tracing.tracer import Tracer
from autotune.facts.stack import fused_head
from autotune.training.patching import replaced, require

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


def watch_layers(tracer: Tracer, model: Any) -> int:
    """Mark what happens in each decoder layer; how many there are (0: not to be told)."""
    layers = decoder_layers(model)
    if layers is None:
        return 0
    for index, module in enumerate(layers):
        region = events.layer(index)
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
