"""What has to be replaced so that a trainer runs on fake tensors as it would on real ones.

Each function is a context manager that puts things back. Runs in a child only.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import accelerate.utils.other
import torch
import torch.nn.functional as F
import torch.utils._foreach_utils
import torch.utils.checkpoint
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor

from autotune.estimate.records import events
from autotune.estimate.tracing.fused_head import fused_head_as_on_cuda
from autotune.estimate.tracing.kernels.cuda import CudaRules, dispatched_as_on_cuda
from autotune.estimate.tracing.tracer import Tracer
from autotune.training.patching import replaced

aten = torch.ops.aten
_EXPORT_CHECKS = ("is_tracing", "is_fake_tensor")
_EXPORT_MODULES = (
    "transformers.masking_utils",
    "transformers.utils.import_utils",
    "transformers.utils",
    "transformers.modeling_utils",
    "transformers.modeling_flash_attention_utils",
    "transformers.integrations.sdpa_attention",
)
_FOREACH_MODULES = ("torch.utils._foreach_utils", "torch.optim.optimizer")


@contextlib.contextmanager
def fake_run(tracer: Tracer, cuda: CudaRules | None) -> Iterator[None]:
    """Patch all that a trace needs; with CUDA's choices where `cuda` is given."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(torch.nn.Module, "to", _to_dtype_only))
        stack.enter_context(eager_branches())
        stack.enter_context(_recomputation_seen(tracer))
        stack.enter_context(_known_tolist(tracer))
        stack.enter_context(replaced(FakeTensor, "__deepcopy__", _copied))
        stack.enter_context(_grouped_mm_of_any_dtype())
        stack.enter_context(replaced(torch.cuda, "empty_cache", tracer.empty_cache))
        stack.enter_context(_weights_unread())
        stack.enter_context(_checkpoints_on_host(tracer))
        _keep_one_mode()
        if cuda is None:
            stack.enter_context(_generator_states_seen(tracer))
        else:
            stack.enter_context(cuda_attention(cuda))
            stack.enter_context(_foreach_as_on_cuda())
            stack.enter_context(dispatched_as_on_cuda())
            stack.enter_context(fused_head_as_on_cuda(tracer))
        yield


def _to_dtype_only(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand for `Module.to`, which cannot swap fake parameters: only dtypes move."""
    _, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    if dtype is not None and dtype.is_floating_point:
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
    return module


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a fake tensor; torch's own fails on the values that small ones carry
    along."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = copy
    return memo[id(tensor)]


def _keep_one_mode() -> None:
    """Keep copied tensors, whose attributes are copied too, in the same fake mode."""
    mode: Any = active_fake_mode()
    mode.__deepcopy__ = lambda _: mode


@contextlib.contextmanager
def eager_branches() -> Iterator[None]:
    """Keep transformers off the export branches that it takes on fake tensors."""
    with contextlib.ExitStack() as stack:
        for path in _EXPORT_MODULES:
            module = importlib.import_module(path)
            for name in _EXPORT_CHECKS:
                if hasattr(module, name):
                    stack.enter_context(replaced(module, name, lambda *_, **__: False))
        yield


@contextlib.contextmanager
def _recomputation_seen(tracer: Tracer) -> Iterator[None]:
    """Count as activations what checkpointing computes again in the backward pass."""
    hook: Any = torch.utils.checkpoint._recomputation_hook

    class Seen(hook):
        def __enter__(self) -> Any:
            tracer.recomputing = True
            return super().__enter__()

        def __exit__(self, *args: Any) -> Any:
            tracer.recomputing = False
            return super().__exit__(*args)

    with replaced(torch.utils.checkpoint, "_recomputation_hook", Seen):
        yield


def _checkpoints_on_host(tracer: Tracer) -> contextlib.AbstractContextManager[None]:
    """Count as the host's what offloaded checkpointing copies there; fake tensors of one device
    would only be passed on, and are copied back."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        with replaced(tracer, "paused", True):
            copy = torch.empty(tensor.size(), dtype=tensor.dtype)
        tracer.follow(copy, events.HOST, "save_on_cpu", tracer.region)
        return copy

    def hooks(**_: Any) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(pack, torch.clone)

    modeling: Any = importlib.import_module("transformers.modeling_utils")
    there = hasattr(modeling, "save_on_cpu")  # from transformers 5.24 on
    return replaced(modeling, "save_on_cpu", hooks) if there else contextlib.nullcontext()


@contextlib.contextmanager
def _known_tolist(tracer: Tracer) -> Iterator[None]:
    original = FakeTensor.tolist

    def tolist(tensor: Any) -> Any:
        values = tracer.known_values.as_list(tensor)
        return original(tensor) if values is None else values

    with replaced(FakeTensor, "tolist", tolist):
        yield


@contextlib.contextmanager
def _generator_states_seen(tracer: Tracer) -> Iterator[None]:
    """Note the states of random generators, which checkpointing keeps on the CPU."""
    original = torch.get_rng_state

    def state() -> torch.Tensor:
        generator_state = original()
        tracer.follow(generator_state, events.ACTIVATIONS, "get_rng_state", tracer.region)
        return generator_state

    with replaced(torch, "get_rng_state", state):
        yield


@contextlib.contextmanager
def _grouped_mm_of_any_dtype() -> Iterator[None]:
    """Let the grouped matmul of mixtures of experts take more than bfloat16, as its kernels do."""
    rules: Any = torch._meta_registrations
    original = rules._meta_grouped_mm_common

    def shape_of(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        if left.dtype is torch.bfloat16 or left.dtype is not right.dtype:
            return original(left, right, *args, **kwargs)
        return rules._create_grouped_mm_output_tensor(left, right, kwargs["offs"], None)

    with replaced(rules, "_meta_grouped_mm_common", shape_of):
        yield


@contextlib.contextmanager
def _weights_unread() -> Iterator[None]:
    """Stand for the hash of the weights by which TRL's trainers name a reference that is computed
    before the training: fake weights have none."""
    with contextlib.ExitStack() as stack:
        for name in ("dpo", "kto"):
            owner = sys.modules.get(f"trl.trainer.{name}_trainer")
            if hasattr(owner, "hash_module"):
                stack.enter_context(replaced(owner, "hash_module", lambda _: "fake"))
        yield


@contextlib.contextmanager
def deepspeed_left_alone() -> Iterator[None]:
    """Keep accelerate from importing DeepSpeed, in a second, only to ask whether a model is an
    engine."""
    with replaced(accelerate.utils.other, "is_deepspeed_available", lambda: False):
        yield


@contextlib.contextmanager
def _foreach_as_on_cuda() -> Iterator[None]:
    """Let gradient clipping and AdamW take their foreach kernels, as on CUDA."""
    kinds = torch.utils._foreach_utils._get_foreach_kernels_supported_devices

    def with_ours() -> list[str]:
        return [*kinds(), "cpu"]

    with contextlib.ExitStack() as stack:
        # torch.optim hides its module of that name behind the class.
        for owner in map(importlib.import_module, _FOREACH_MODULES):
            if hasattr(owner, "_get_foreach_kernels_supported_devices"):
                stack.enter_context(
                    replaced(owner, "_get_foreach_kernels_supported_devices", with_ours)
                )
            if hasattr(owner, "_foreach_supported_types"):
                types = [*owner._foreach_supported_types, FakeTensor]
                stack.enter_context(replaced(owner, "_foreach_supported_types", types))
        yield


@contextlib.contextmanager
def cuda_attention(cuda: CudaRules) -> Iterator[None]:
    """Run `F.scaled_dot_product_attention` as the kernel that CUDA would take.

    A plain replacement: a TorchFunctionMode is off while `Tensor.backward` runs, and with it the
    recomputation of checkpointed layers.
    """

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
        with torch.autocast("cpu", enabled=False):
            return _run_kernel(
                cuda,
                *(query, key, value, attn_mask, dropout_p, is_causal),
                scale=scale,
                enable_gqa=enable_gqa,
            )

    with replaced(F, "scaled_dot_product_attention", attention):
        yield


def _run_kernel(
    cuda: CudaRules,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """Run the operator of the kernel that CUDA would take."""
    kernel = cuda.attention(query, key, value, attn_mask)
    if kernel == "math":
        return aten._scaled_dot_product_attention_math(
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
    if kernel == "flash":
        size = query.shape[-1]
        padded = (_padded(tensor) for tensor in (query, key, value))
        return aten._scaled_dot_product_flash_attention(
            *padded, dropout_p, is_causal, return_debug_mask=False, scale=scale
        )[0][..., :size]
    if attn_mask is not None:
        attn_mask = _additive(attn_mask, query, key)
    operator = aten._scaled_dot_product_efficient_attention
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, True, dropout_p, is_causal, False, scale=scale
        )[0]
    return operator(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


def _padded(tensor: Any, *, always: bool = False) -> Any:
    """Return the tensor with rows of a multiple of eight, as the kernels want; `always`: also where
    they are that already, with four columns more, as many as are missing on average."""
    missing = -tensor.shape[-1] % 8 or (4 if always else 0)
    return F.pad(tensor, (0, missing)) if missing else tensor


def _additive(mask: Any, query: Any, key: Any) -> Any:
    """Return a boolean mask as an additive one, of every row of the batch."""
    if mask.dtype == torch.bool:
        nothing = torch.zeros((), dtype=query.dtype)
        mask = torch.where(mask, nothing, torch.full((), float("-inf"), dtype=query.dtype))
    # Rows laid one behind the other are traced at multiples of eight tokens; real ones rarely are.
    mask = _padded(mask, always=mask.shape[0] == 1)[..., : key.shape[2]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
