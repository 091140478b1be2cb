"""bitsandbytes on tensors without data: optimizers, quantised layers, and adapters on those.

The library itself is not asked, so that it need not be there. Source: bitsandbytes 0.50.

Optimizers (optim/optimizer.py) keep moments of a byte each with a float32 maximum for every 256 of
them; in float32 for parameters of fewer than 4096 numbers, and for embeddings, which transformers'
Trainer asks for. Paged ones keep moments of more than 10^5 numbers in memory that the driver moves
between host and GPU: outside the allocator, and not counted. On a GPU its step makes nothing; on a
CPU (backends/cpu/ops.py) it computes on copies in float32, which are made here for Adam.

Layers (nn/modules.py, autograd/_functions.py, functional.py and the kernels in backends/): each
line below that makes a tensor stands for one there, in the same order, so that what lives how long
is the same. Not followed: on CUDA, of 4 bits and up to 1536 tokens, the kernels that multiply
without unpacking (here each forward pass unpacks its weight, as each backward pass does in any
case); of 8 bits, columns of outliers, which random weights do not have; on a CPU, the layout that
it takes for inference. Which linear layers stay as they are is transformers' own choice (its output
head, what is tied, the last module: a classifier's).

peft puts adapters of its own kinds on these layers, whose forward passes differ from those on plain
ones (peft 0.21, tuners/lora/bnb.py). Runs in a child only.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import peft.tuners.lora.model as lora_model
import torch
import torch.nn.functional as F
import transformers
from peft.tuners.lora.layer import Linear as LoraLinear
from torch._subclasses.fake_tensor import FakeTensor
from trl import ModelConfig

from autotune.facts.model import quantised_layers
from autotune.training.family import Models
from autotune.training.patching import replaced
from autotune.training.quantized import is_quantized

_SHARED_BY_MOMENTS, _SMALLEST, _PAGED = 256, 4096, 10**5
"""Moments that share a maximum; the fewest numbers whose moments are narrow; that are paged."""
MOMENTS = {"adam": 2, "lion": 1, "rmsprop": 1}
"""Moments that an optimizer keeps, by a word in its name."""


def moments_of(optim: str) -> int | None:
    """Return how many moments an optimizer of bitsandbytes keeps; None of those that are not its
    own."""
    eight = "8bit" in optim and optim != "adamw_torch_8bit"
    if not (eight or "paged" in optim or "bnb" in optim) or "ademamix" in optim:
        return None
    return next((count for word, count in MOMENTS.items() if word in optim), None)


@contextlib.contextmanager
def bitsandbytes_optimizers(*, on_cuda: bool) -> Iterator[None]:
    """Give trainers the stand-in where they ask for one of bitsandbytes' optimizers."""
    original = transformers.Trainer.get_optimizer_cls_and_kwargs

    def optimizer_class(args: Any, model: Any = None) -> Any:
        optim = getattr(args.optim, "value", args.optim)
        moments = moments_of(str(optim))
        if moments is None:
            return original(args, model)
        embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        return StandIn, {
            "lr": args.learning_rate,
            "moments": moments,
            "eight_bit": "8bit" in optim,
            "paged": on_cuda and "paged" in optim,
            "copies": not on_cuda,
            "wide": frozenset(id(embedding.weight) for embedding in embeddings),
        }

    with replaced(
        transformers.Trainer, "get_optimizer_cls_and_kwargs", staticmethod(optimizer_class)
    ):
        yield


class StandIn(torch.optim.Optimizer):
    """Keeps what such an optimizer keeps, and reads and writes it."""

    def __init__(
        self,
        params: Any,
        lr: float,
        moments: int,
        eight_bit: bool,
        paged: bool,
        copies: bool,
        wide: frozenset[int],
    ) -> None:
        super().__init__(params, {"lr": lr})
        self._moments, self._eight_bit, self._paged, self._wide = moments, eight_bit, paged, wide
        self._copies = copies

    def step(self, closure: Any = None) -> None:
        """Update the moments of every parameter that has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter)

    def _update(self, parameter: Any) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._new_state(parameter))
        for moment in state.values():
            moment.add_(1)
        if self._copies:
            _compute_on_copies(parameter, [m for name, m in state.items() if "moment" in name])
        parameter.mul_(1)
        parameter.grad.mul_(1)

    def _new_state(self, parameter: Any) -> dict[str, Any]:
        narrow = self._eight_bit and id(parameter) not in self._wide
        narrow = narrow and parameter.numel() >= _SMALLEST
        kind = torch.uint8 if narrow else torch.float32
        state: dict[str, Any] = {}
        for n in range(self._moments):
            if not (self._paged and parameter.numel() >= _PAGED):
                state[f"moment {n}"] = torch.zeros_like(parameter, dtype=kind)
            if narrow:
                blocks = -(-parameter.numel() // _SHARED_BY_MOMENTS)
                state[f"maxima {n}"] = torch.zeros(blocks, device=parameter.device)
        return state


def _compute_on_copies(parameter: Any, moments: list[Any]) -> None:
    """Make the copies that the step of Adam makes on a CPU."""
    wide_moments = [
        m if m.dtype is torch.float32 else torch.empty_like(m, dtype=torch.float32) for m in moments
    ]
    gradient = parameter.grad.float() * 1.0
    copy = parameter.detach().float()
    if moments[0].dtype is torch.float32:
        update = wide_moments[0] / (wide_moments[-1].sqrt() + 1.0)
    else:
        update = wide_moments[-1].sqrt() / 1.0
    del gradient, copy, update


BLOCK, NESTED_BLOCK = 64, 256
"""Weights that share a maximum, and maxima that share one where they are quantised again."""
OUTLIER = 6.0
_SCALE = 1.0 / 127.0


_library: list[Any] = []


def unpack(packed: Any, maxima: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Dequantise by one operator, which reads and writes as much as the real kernel."""
    if not _library:
        library = torch.library.Library("autotune", "DEF")
        library.define(
            "unpack(Tensor packed, Tensor maxima, int[] shape, ScalarType dtype) -> Tensor"
        )
        library.impl(
            "unpack",
            lambda packed, maxima, shape, dtype: packed.new_empty(shape, dtype=dtype),
            "CompositeExplicitAutograd",
        )
        _library.append(library)
    return torch.ops.autotune.unpack.default(packed, maxima, shape, dtype)


class Linear4bit(torch.nn.Linear):
    """Two weights in a byte, with a maximum for every 64; the maxima in a byte each if `nested`."""

    def __init__(
        self,
        source: Any,
        shape: tuple[int, int],
        *,
        compute: Any,
        nested: bool,
        storage: Any,
        on_cuda: bool,
    ) -> None:
        """Stand in for `source`, of `shape` (out, in); it multiplies in the type `compute`, and its
        weight is stored as numbers of the type `storage`."""
        _like(self, source, shape)
        count = shape[0] * shape[1]
        blocks = -(-count // BLOCK)
        packed = (count + 1) // 2 // storage.itemsize
        self.weight = _freeze(torch.empty(packed, 1, dtype=storage, device="meta"))
        self.compute_dtype = compute
        self._shape, self._kind, self._nested = shape, source.weight.dtype, nested
        self._on_cuda = on_cuda
        _keep(self, "maxima", blocks, torch.uint8 if nested else torch.float32)
        _keep(self, "code", 16, torch.float32)
        if nested:
            _keep(self, "nested_maxima", -(-blocks // NESTED_BLOCK), torch.float32)
            _keep(self, "nested_code", 256, torch.float32)
            _keep(self, "offset", (), torch.float32)

    def forward(self, x: Any) -> Any:
        """Return the forward pass as theirs."""
        dtype = x.dtype
        x = x.to(self.compute_dtype)
        bias = self.bias
        if bias is not None:
            if bias.dtype != x.dtype:
                bias.data = bias.data.to(x.dtype)
            bias = bias.to(self.compute_dtype)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Product4bit.apply(x, bias, self).to(dtype)
        return self.product(x, bias).to(dtype)

    def product(self, x: Any, bias: Any) -> Any:
        """Return the forward pass: the whole weight is unpacked into the type of `x`."""
        maxima = self.maxima
        if self._nested:
            unpacked = unpack(maxima, self.nested_maxima, maxima.shape, torch.float32)
            maxima = unpacked + self.offset
            if not self._on_cuda:  # there it is held to the end
                del unpacked
        weight = unpack(self.weight, maxima, self._shape, x.dtype)
        return F.linear(x, weight, bias)

    def weight_of(self) -> Any:
        """Return the weight in the type that it had before it was packed."""
        maxima = self.maxima
        if self._nested:
            maxima = unpack(maxima, self.nested_maxima, maxima.shape, torch.float32)
            maxima += self.offset
        return unpack(self.weight, maxima, self._shape, self._kind)


class _Product4bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, layer: Linear4bit) -> Any:
        ctx.layer = layer
        ctx.packed = layer.weight.t()  # theirs keeps it: a weight that ZeRO-3 gathered stays then
        return layer.product(x, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.matmul(gradient, ctx.layer.weight_of().to(gradient.dtype)), None, None


class Linear8bitLt(torch.nn.Linear):
    """A weight in a byte, with a scale for each row."""

    def __init__(self, source: Any, shape: tuple[int, int], *, on_cuda: bool) -> None:
        """Stand in for `source`, of `shape` (out, in)."""
        _like(self, source, shape)
        self.weight = _freeze(torch.empty(shape, dtype=torch.int8, device="meta"))
        _keep(self, "scales", shape[0], torch.float32)
        self._product = _Product8bitCuda if on_cuda else _Product8bit

    def forward(self, x: Any) -> Any:
        """Return the forward pass as theirs."""
        if self.bias is not None and self.bias.dtype != x.dtype:
            self.bias.data = self.bias.data.to(x.dtype)
        return self._product.apply(x, self.bias, self)

    def weight_of(self, dtype: torch.dtype) -> Any:
        """Return the weight in the type of what it is multiplied with."""
        return self.weight.data.to(dtype).mul_(self.scales.unsqueeze(1).mul(_SCALE))


class _Product8bit(torch.autograd.Function):
    """MatMul8bitFp: the product on a CPU, in training."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, layer: Linear8bitLt) -> Any:
        weight = layer.weight_of(x.dtype)
        output = F.linear(x, weight, bias)
        ctx.x, ctx.layer, ctx.dtype, ctx.shape = x, layer, x.dtype, x.shape
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient.ndim == 3:
            gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        weight = ctx.layer.weight_of(ctx.dtype)
        return torch.matmul(gradient.to(ctx.dtype), weight).view(ctx.shape), None, None


class _Product8bitCuda(torch.autograd.Function):
    """MatMul8bitLt: the product on CUDA. It keeps its input until the graph is let go of."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, layer: Linear8bitLt) -> Any:
        shape = x.shape
        if x.ndim == 3:
            x = x.reshape(-1, x.shape[-1])
        packed, scales = _quantized_rows(x.to(torch.float16))
        product = _int_product(packed, layer.weight)
        output = torch.empty_like(product, dtype=torch.float16)
        if bias is not None and bias.dtype != torch.float16:
            output.add_(bias)
        output = output.to(x.dtype)
        del packed, scales, product
        ctx.x, ctx.layer, ctx.dtype, ctx.shape = x, layer, x.dtype, shape
        return output.reshape(*shape[:-1], -1)

    backward = _Product8bit.backward


def _quantized_rows(x: Any) -> tuple[Any, Any]:
    scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
    packed = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    outliers = x.abs() >= OUTLIER
    del outliers
    packed.zero_()
    return packed, scales


def _int_product(packed: Any, weight: Any) -> Any:
    """Return the product in int32."""
    return torch._int_mm(packed, weight.t())


def _like(layer: Any, source: Any, shape: tuple[int, int]) -> None:
    torch.nn.Module.__init__(layer)
    layer.out_features, layer.in_features = shape
    layer.bias = None if source.bias is None else _freeze(source.bias.data)


def _keep(layer: Any, name: str, size: Any, dtype: torch.dtype) -> None:
    layer.register_buffer(name, torch.empty(size, dtype=dtype, device="meta"), persistent=False)


def _freeze(tensor: Any) -> Any:
    return torch.nn.Parameter(tensor, requires_grad=False)


def quantize(models: Models, model: ModelConfig, *, on_cuda: bool) -> Models:
    """Return models without storage, the linear layers of the policy, and of a reference of its
    own, replaced where `model` says so."""
    if is_quantized(model):
        for module in (models.policy, models.reference):
            if module is not None:
                _quantize(module, model, on_cuda=on_cuda)
    return models


class Params4bit(FakeTensor):
    """A packed weight: accelerate knows by its class's name that the base is quantised."""


def name_packed(model: Any) -> None:
    """Let accelerate know the packed weights of a model with fake storage."""
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.weight.__class__ = Params4bit


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
        module,
        shape,
        compute=kind,
        nested=model.use_bnb_nested_quant,
        storage=getattr(torch, model.bnb_4bit_quant_storage or "uint8"),
        on_cuda=on_cuda,
    )


@contextlib.contextmanager
def without_bitsandbytes(*, on_cuda: bool) -> Iterator[None]:
    """Let stand-ins take the place of its optimizers and layers, whether it is installed or not."""
    with bitsandbytes_optimizers(on_cuda=on_cuda), adapters_on_quantized(on_cuda=on_cuda):
        yield


@contextlib.contextmanager
def adapters_on_quantized(*, on_cuda: bool) -> Iterator[None]:
    """Let peft adapt the stand-ins as it adapts bitsandbytes' layers."""
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
