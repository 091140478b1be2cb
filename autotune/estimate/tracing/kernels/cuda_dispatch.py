"""Operators that dispatch differently on CUDA: the CPU's dispatch keys get CUDA's kernels.

Registered with torch's dispatcher, so that calls from C++ (the dropout inside an attention) and
from any model's code go the same way. Sources: aten/src/ATen/autocast_mode.h (the lists of
autocast), aten/src/ATen/native/Dropout.cpp; compared with torch's CUDA
allocator by benchmarks/virtual_gpu/operators.py.
Known not to be modelled: autocast's list of promoted types, the fused kernel of `F.rms_norm` (the
trace runs its parts and is too high; the models of transformers write it out themselves).
Runs in a child only.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_IN_FLOAT32 = (
    *("exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "softplus"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "layer_norm", "rms_norm"),
    *("native_layer_norm", "group_norm", "cosine_similarity", "logsumexp", "cdist", "dist"),
    *("nll_loss", "nll_loss2d", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("binary_cross_entropy_with_logits", "margin_ranking_loss", "cosine_embedding_loss"),
)
"""Operators whose inputs autocast casts to float32."""
_TO_FLOAT32 = (
    *("softmax.int", "log_softmax.int", "cumsum", "cumprod", "prod", "prod.dim_int", "sum"),
    *("sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm"),
)
"""Operators that autocast calls with `dtype=torch.float32` where no type is given."""


@contextlib.contextmanager
def dispatched_as_on_cuda() -> Iterator[None]:
    """CUDA's composites and autocast for tensors of the CPU."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are overridden
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("cross_entropy_loss", torch.library.fallthrough_kernel, "AutocastCPU")
        for name in _IN_FLOAT32:
            library.impl(name, _cast_first(_overload(name)), "AutocastCPU")
        for name in _TO_FLOAT32:
            library.impl(name, _given_dtype(_overload(name)), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Keeps a mask of one byte an element (`is_fused_kernel_acceptable`)."""
    if p == 0 or not train or not tensor.numel():
        return tensor
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype)
    return torch.native_dropout(tensor, p, train)[0]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _cast_first(operator: Any) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16):
            return value.float()
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operator(*map(cast, args), **{name: cast(kwargs[name]) for name in kwargs})

    return kernel


def _given_dtype(operator: Any) -> Callable[..., Any]:
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = args[place] if place < len(args) else kwargs.get("dtype")
        if dtype is None and args[0].is_floating_point() and args[0].dtype != torch.float64:
            args = args[:place]
            kwargs = {**kwargs, "dtype": torch.float32}
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operator(*args, **kwargs)

    return kernel
