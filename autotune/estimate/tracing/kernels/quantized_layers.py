"""bitsandbytes' quantised linear layers on tensors without data: what they keep and what they make.

Source: bitsandbytes 0.50, nn/modules.py, autograd/_functions.py, functional.py and the kernels in
backends/: each line below that makes a tensor stands for one there, in the same order, so that
what lives how long is the same. Not followed: on CUDA, of 4 bits and up to 1536 tokens, the kernels
that multiply without unpacking (here each forward pass unpacks its weight, as each backward pass
does in any case); of 8 bits, columns of outliers, which random weights do not have; on a CPU, the
layout that it takes for inference. The library itself is not asked, so that it need not be there.
Runs in a child only.
"""

from typing import Any

import torch
import torch.nn.functional as F

BLOCK, NESTED_BLOCK = 64, 256
"""Weights that share a maximum, and maxima that share one where they are quantised again."""
OUTLIER = 6.0
_SCALE = 1.0 / 127.0


_library: list[Any] = []


def unpack(packed: Any, maxima: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Return the kernel that dequantises: one operator, which reads and writes what the real one
    does."""
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
        self, source: Any, shape: tuple[int, int], *, compute: Any, nested: bool, on_cuda: bool
    ) -> None:
        """Stand in for `source`, of `shape` (out, in); it multiplies in the type `compute`."""
        _like(self, source, shape)
        count = shape[0] * shape[1]
        blocks = -(-count // BLOCK)
        self.weight = _freeze(torch.empty((count + 1) // 2, 1, dtype=torch.uint8, device="meta"))
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
