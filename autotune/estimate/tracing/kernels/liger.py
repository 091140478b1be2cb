"""Liger's kernels by what they allocate and keep, whether the package is installed or not.

Source: liger-kernel 0.8.5, `ops/{rms_norm,swiglu,rope,fused_linear_cross_entropy}.py` and
`transformers/monkey_patch.py`, for the models whose four kernels are put in alike
(`variant.LIGER_MODELS`). Triton's kernels allocate nothing: what is made is made in Python around
them, and is made here in the same order. The loss makes its gradients in the forward pass; the
chunks between its first and its last are run once and written down as often as they are done.
Known error: the number of a GPU's processors, of which each sums up a row of a norm's gradient.
Runs in a child only.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
import transformers.trainer
from transformers.modeling_outputs import CausalLMOutputWithPast

from autotune.estimate.records.events import ALLOCATE, FREE
from autotune.estimate.tracing.fused_head import float32_adder, note
from autotune.estimate.tracing.tracer import Tracer
from autotune.training.patching import replaced, require


@contextlib.contextmanager
def repeated(tracer: Tracer, times: int) -> Iterator[None]:
    """Write down what is done inside as if it were done `times` times.

    Only for what leaves no storage behind, and lets go of none that was there before.

    Raises:
        ValueError: it does.
    """
    begin, work_begin = len(tracer.events), len(tracer.works or [])
    yield
    if times == 1:
        return
    done = tracer.events[begin:]
    if not _is_closed(done):
        raise ValueError("what is to be repeated leaves storages behind, or lets go of others")
    for _ in range(times - 1):
        _write_down(tracer, done)
    if tracer.works is not None:
        tracer.works += tracer.works[work_begin:] * (times - 1)


def _is_closed(events: Sequence[tuple[Any, ...]]) -> bool:
    made = [event[1] for event in events if event[0] == ALLOCATE]
    freed = [event[1] for event in events if event[0] == FREE]
    return len(events) == len(made) + len(freed) and sorted(made) == sorted(freed)


def _write_down(tracer: Tracer, events: Sequence[tuple[Any, ...]]) -> None:
    keys: dict[int, int] = {}
    for event in events:
        if event[0] == ALLOCATE:
            keys[event[1]] = tracer.allocate(*event[2:])
        else:
            tracer.free(keys[event[1]])


_HALF = (torch.float16, torch.bfloat16)
_PROCESSORS = 128
_IGNORED = -100


@dataclass
class _Output(CausalLMOutputWithPast):
    token_accuracy: Any = None


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
        self._tracer, self.add = tracer, float32_adder(tracer)
        self.repeated = functools.partial(repeated, tracer)

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
    plain = model.forward

    @functools.wraps(plain)
    def forward(*args: Any, labels: Any = None, **kwargs: Any) -> Any:
        if not model.training or labels is None:
            return plain(*args, labels=labels, **kwargs)
        return _with_loss(model, kernels, args, labels, kwargs)

    model.forward = forward


def _with_loss(model: Any, kernels: _Kernels, args: Any, labels: Any, kwargs: Any) -> Any:
    """Stand for `lce_forward`, which makes the logits of a chunk of tokens at a time."""
    count = kwargs.pop("num_items_in_batch", None)
    for name in ("skip_logits", "return_token_accuracy", "use_token_scaling", "logits_to_keep"):
        kwargs.pop(name, None)
    hidden = model.model(*args, **kwargs)[0]
    target = F.pad(labels, (0, 1), value=_IGNORED)[..., 1:].contiguous().view(-1)
    rows = hidden.view(-1, hidden.shape[-1])
    loss, accuracy = _Loss.apply(kernels, rows, model.lm_head.weight, target)
    return _Output(loss=loss if count is None else loss / count, token_accuracy=accuracy)


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


class _Loss(torch.autograd.Function):
    """`LigerFusedLinearCrossEntropyFunction`."""

    @staticmethod
    def forward(context: Any, kernels: _Kernels, states: Any, head: Any, target: Any) -> Any:
        """Return the loss, and the gradients of the states and the head, chunk by chunk."""
        of_states = torch.zeros_like(states)
        of_head = torch.zeros_like(head) if context.needs_input_grad[2] else None
        losses = torch.zeros(len(states), dtype=torch.float32)
        accuracies = torch.zeros(len(states), dtype=torch.float32)
        (target != _IGNORED).sum().item()
        size = chunk_size(len(states), states.shape[-1], len(head))
        plain = not torch.is_autocast_enabled("cpu") or (
            states.dtype == head.dtype == torch.get_autocast_dtype("cpu")
        )
        buffer = torch.empty((size, len(head)), dtype=states.dtype) if plain else None
        for start, times in _different_chunks(len(states), size):
            part, of_part = states[start : start + size], of_states[start : start + size]
            with kernels.repeated(times):
                _chunk(kernels, part, head, buffer, of_part, of_head)
        del buffer
        context.kernels = kernels
        context.save_for_backward(of_states, of_head)
        return torch.sum(losses), torch.sum(accuracies)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return what the forward pass made, scaled in place."""
        saved_gradients = context.saved_tensors
        for gradient in saved_gradients:
            if gradient is not None:
                context.kernels.run("element_mul", gradient, gradient)
        return None, *saved_gradients, None


def _different_chunks(tokens: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the first token and the count of the first chunk, of those between, and of the last.

    The first one makes what the others find: a cast of the head, workspaces.
    """
    starts = range(0, tokens, size)
    yield starts[0], 1
    if len(starts) > 2:
        yield starts[1], len(starts) - 2
    if len(starts) > 1:
        yield starts[-1], 1


def _chunk(
    kernels: _Kernels, part: Any, head: Any, buffer: Any, of_part: Any, of_head: Any
) -> None:
    """Make the logits of a chunk, its states' gradient, and what it adds to that of the head."""
    wide = head.t()
    logits = part @ wide if buffer is None else torch.mm(part, wide, out=buffer[: len(part)])
    kernels.run("cross_entropy", logits, logits, logits)
    if buffer is None:
        of_part[:] = logits @ head
    else:
        torch.mm(logits, head, out=of_part)
    if of_head is not None:
        _add_product(kernels, of_head, logits, part)


def _add_product(kernels: _Kernels, of_head: Any, logits: Any, part: Any) -> None:
    """Do `of_head += logits.t() @ part`: halves into halves, or into float32 without a copy."""
    if logits.dtype not in _HALF:
        of_head += torch.mm(logits.t(), part).float()
    elif of_head.dtype == logits.dtype:
        of_head.addmm_(logits.t(), part.to(logits.dtype))
    else:
        kernels.add(of_head, logits.t(), part.to(logits.dtype))


def chunk_size(tokens: int, hidden: int, vocabulary: int) -> int:
    """Return tokens whose logits are made at once: a power of two, about as wide as all hidden
    states."""
    share = -(-tokens // -(-vocabulary // hidden))
    return min(1 << (share - 1).bit_length(), tokens)
