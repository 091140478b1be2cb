"""Liger's kernels by what they allocate and keep, whether the package is installed or not.

Source: liger-kernel 0.8.5, `ops/{rms_norm,swiglu,rope}.py` and `transformers/monkey_patch.py`, for
the models whose three kernels are put in alike (`variant.LIGER_MODELS`); the loss is TRL's own.
Triton's kernels allocate nothing: what is made is made in Python around them, and is made here in
the same order. Known error: the number of a GPU's processors, of which each sums up a row of a
norm's gradient. Runs in a child only.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
import transformers.trainer

from autotune.estimate.tracing.fused_head import note
from autotune.estimate.tracing.tracer import Tracer
from autotune.training.patching import replaced, require

_PROCESSORS = 128


@contextlib.contextmanager
def liger_installed(tracer: Tracer, config: Any) -> Iterator[None]:
    """Let the trainer put these kernels in where the configuration asks for Liger's."""
    if not config.get("use_liger_kernel"):
        yield
        return
    require(transformers.trainer, "apply_liger_kernel")
    kernels = _Kernels(tracer)
    with contextlib.ExitStack() as stack:

        def apply(model: Any, _: Any) -> None:
            bare = model.get_base_model() if hasattr(model, "get_base_model") else model
            owner = importlib.import_module(type(bare).__module__)
            require(owner, "apply_rotary_pos_emb")
            rope = functools.partial(_rope, kernels)
            stack.enter_context(replaced(owner, "apply_rotary_pos_emb", rope))
            _put_in(bare, kernels)

        stack.enter_context(replaced(transformers.trainer, "apply_liger_kernel", apply))
        yield


class _Kernels:
    """Kernels of the GPU, noted by a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, name: str, *tensors: Any) -> None:
        """Run a kernel of Triton that reads or writes each of these once."""
        moved_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        note(self._tracer, f"liger::{name}", "memory", tensors[0], (), 0, moved_bytes)


def _put_in(model: Any, kernels: _Kernels) -> None:
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = MethodType(functools.partial(_norm, kernels), module)
        elif kind.endswith("MLP"):
            module.forward = MethodType(functools.partial(_gated, kernels), module)


def _norm(kernels: _Kernels, module: Any, states: Any) -> Any:
    return _Norm.apply(kernels, states, module.weight)


def _gated(kernels: _Kernels, module: Any, states: Any) -> Any:
    return module.down_proj(_Gated.apply(kernels, module.gate_proj(states), module.up_proj(states)))


def _rope(kernels: _Kernels, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return _Rope.apply(kernels, q, k, cos, sin)


class _Norm(torch.autograd.Function):
    """`LigerRMSNormFunction`, in llama's casting mode, in place."""

    @staticmethod
    def forward(context: Any, kernels: _Kernels, states: Any, weight: Any) -> Any:
        """Keep the input, and a float32 figure for each row."""
        rows = states.contiguous().view(-1, states.shape[-1])
        out = torch.empty(rows.shape, dtype=rows.dtype)
        deviations = torch.empty(rows.shape[0], dtype=torch.float32)
        kernels.run("rms_norm", rows, out)
        context.kernels = kernels
        context.save_for_backward(rows, weight, deviations)
        return out.view(*states.shape)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Write into the gradient that it gets."""
        rows, weight, _ = context.saved_tensors
        gradient = gradients[0].contiguous()
        sums = None
        if context.needs_input_grad[2]:
            sums = torch.empty((_PROCESSORS, rows.shape[-1]), dtype=torch.float32)
        context.kernels.run("rms_norm_backward", gradient, gradient, rows)
        of_weight = None if sums is None else sums.sum(dim=0).to(weight.dtype)
        return None, gradient, of_weight


class _Gated(torch.autograd.Function):
    """`LigerSiLUMulFunction`: keeps its two inputs and writes their gradients into them."""

    @staticmethod
    def forward(context: Any, kernels: _Kernels, gate: Any, up: Any) -> Any:
        """Return `silu(gate) * up`."""
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        kernels.run("swiglu", gate, up, out)
        context.kernels = kernels
        context.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Write the gradients into the inputs, in place."""
        gate, up = context.saved_tensors
        context.kernels.run("swiglu_backward", gradients[0].contiguous(), gate, up, gate, up)
        return None, gate, up


class _Rope(torch.autograd.Function):
    """`LigerRopeFunction`: turns queries and keys where they lie."""

    @staticmethod
    def forward(context: Any, kernels: _Kernels, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        """Keep only the angles."""
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        kernels.run("rope", q, q, k, k)
        context.kernels = kernels
        context.save_for_backward(cos.contiguous(), sin.contiguous())
        return q.transpose(1, 2), k.transpose(1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Turn the gradients back."""
        q, k = (gradient.transpose(1, 2).contiguous() for gradient in gradients)
        context.kernels.run("rope_backward", q, q, k, k)
        return None, q.transpose(1, 2), k.transpose(1, 2), None, None
