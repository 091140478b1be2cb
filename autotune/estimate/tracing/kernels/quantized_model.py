"""Quantised bases in a trace: which layers are replaced, and how adapters are put on them.

Which linear layers stay as they are is transformers' own choice (its output head, what is tied,
the last module: a classifier's); peft puts adapters of its own kinds on bitsandbytes' layers, whose
forward passes differ from those on plain ones (peft 0.21, tuners/lora/bnb.py).
Runs in a child only.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import peft.tuners.lora.model as lora_model
import torch
import transformers
from peft.tuners.lora.layer import Linear as LoraLinear
from trl import ModelConfig

from autotune.estimate.tracing.kernels.optimizers_8bit import bitsandbytes_optimizers
from autotune.estimate.tracing.kernels.quantized_layers import Linear4bit, Linear8bitLt
from autotune.facts.quantized_weights import quantised_layers
from autotune.training.family import Models
from autotune.training.patching import replaced
from autotune.training.quantized import is_quantized


def quantize(models: Models, model: ModelConfig, *, on_cuda: bool) -> Models:
    """Return models without storage, the linear layers of the policy, and of a reference of its
    own, replaced where `model` says so."""
    if is_quantized(model):
        for module in (models.policy, models.reference):
            if module is not None:
                _quantize(module, model, on_cuda=on_cuda)
    return models


def _quantize(policy: Any, model: ModelConfig, *, on_cuda: bool) -> None:
    for name, module in list(quantised_layers(policy)):
        shape = tuple(module.weight.shape)
        shape = shape if type(module) is torch.nn.Linear else tuple(reversed(shape))
        policy.set_submodule(name, _layer(module, shape, policy, model, on_cuda))
    policy.is_loaded_in_4bit = bool(model.load_in_4bit)
    policy.is_loaded_in_8bit = bool(model.load_in_8bit)


def _layer(module: Any, shape: Any, policy: Any, model: ModelConfig, on_cuda: bool) -> Any:
    if model.load_in_8bit:
        return Linear8bitLt(module, shape, on_cuda=on_cuda)
    # TRL computes in the type of the weights.
    kind = policy.dtype if model.dtype == "auto" else getattr(torch, str(model.dtype))
    return Linear4bit(
        module, shape, compute=kind, nested=model.use_bnb_nested_quant, on_cuda=on_cuda
    )


@contextlib.contextmanager
def without_bitsandbytes(*, on_cuda: bool) -> Iterator[None]:
    """Its optimizers and its layers are stood for, whether it is there or not."""
    with bitsandbytes_optimizers(on_cuda=on_cuda), adapters_on_quantized(on_cuda=on_cuda):
        yield


@contextlib.contextmanager
def adapters_on_quantized(*, on_cuda: bool) -> Iterator[None]:
    """peft adapts the stand-ins as it adapts bitsandbytes' layers."""
    original = lora_model.dispatch_default
    kind = _AdaptedOnCuda if on_cuda else _Adapted

    def dispatch(target: Any, adapter_name: str, config: Any, **kwargs: Any) -> Any:
        if isinstance(target, Linear4bit | Linear8bitLt):
            if config.use_dora:
                raise NotImplementedError("DoRA on a quantised base is not traced")
            return kind(target, adapter_name, config=config, **kwargs)
        return original(target, adapter_name, config=config, **kwargs)

    with (
        replaced(lora_model, "dispatch_default", dispatch),
        replaced(transformers.PreTrainedModel, "num_parameters", _parameter_count),
    ):
        yield


def _parameter_count(model: Any, *_: Any, **__: Any) -> int:
    """Return the number of parameters, for which transformers would import bitsandbytes; for a
    log."""
    return sum(parameter.numel() for parameter in model.parameters())


class _Adapted(LoraLinear):
    """An adapter on a quantised layer, with peft's forward pass for one."""

    def _casts(self) -> bool:
        """True if peft casts by itself: it asks for CUDA's autocast, whatever the device."""
        return not torch.is_autocast_enabled()

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output, a copy of it on 4 bits, and the adapter's on top."""
        result = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return result
        if isinstance(self.base_layer, Linear4bit):
            result = result.clone()
        for name in self.active_adapters:
            if name not in self.lora_A:
                continue
            first, second = self.lora_A[name], self.lora_B[name]
            conversion, expected = self._casts(), result.dtype
            if conversion:
                x = self._cast_input_dtype(x, first.weight.dtype)
            output = second(first(self.lora_dropout[name](x))) * self.scaling[name]
            if conversion:
                output = output.to(expected)
            result = result + output
        return result


class _AdaptedOnCuda(_Adapted):
    def _casts(self) -> bool:
        # Where the CPU stands for CUDA in a trace, its autocast does.
        return not torch.is_autocast_enabled("cpu")
