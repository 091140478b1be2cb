"""What CUDA does that a trace on the CPU would not show: kernels, scratch, workspaces, dispatch.

Sources: aten/src/ATen/native/transformers/cuda/ (attention; mem_eff_attention/kernel_backward.h for
its workspace), aten/src/ATen/native/cuda/ (SoftMax.cu, EmbeddingBackwardKernel.cu) and
aten/src/ATen/cuda/CublasHandlePool.cpp (workspaces). Compared with torch's CUDA allocator by
benchmarks/virtual_gpu/operators.py.
Assumed, not read: that cuDNN's backward kernel takes one float32 copy of the queries' gradient.
Known not to be modelled: scratch of cuBLASLt, of sorts and of reductions (at most a few MiB), the
split keys of flash's forward kernel where there are few blocks.

Operators that dispatch differently on CUDA (`dispatched_as_on_cuda`) are registered with torch's
dispatcher, so that calls from C++ (the dropout inside an attention) and from any model's code go
the same way. Sources: aten/src/ATen/autocast_mode.h (the lists of autocast),
aten/src/ATen/native/Dropout.cpp; compared in the same way. Known not to be modelled: autocast's
list of promoted types, the fused kernel of `F.rms_norm` (the trace runs its parts and is too high;
the models of transformers write it out themselves). Runs in a child only.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
_MATMULS = (
    *(aten.mm.default, aten.mm.out, aten.bmm.default),
    *(aten.addmm.default, aten.addmm_.default, aten.baddbmm.default),
)
MOST_UNSORTED_IDS = 3072
"""The most ids whose gradients of an embedding are summed without sorting them."""
_ROWS_PER_PARTIAL = 10
_HALF = (torch.float16, torch.bfloat16)
_BLOCK = 128
"""Queries that flash attention takes at once."""


def _in_blocks(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def _flash_backward(query: Any, rows: int, heads: int, keys: int, key_heads: int) -> Iterator[int]:
    """Yield what flash attention's backward pass allocates (flash_api.cpp, mha_bwd and
    mha_varlen_bwd).

    Args:
        rows: of queries, in whole blocks.
        keys: positions of all rows.
    """
    size = query.shape[-1]
    yield heads * rows * -(-size // 32) * 32 * 4  # dq in float32
    yield heads * rows * 4  # the softmax's row sums
    if key_heads != heads:  # dk and dv of every query head, before they are summed
        yield keys * heads * size * query.element_size()
        yield keys * heads * size * query.element_size()


@dataclass(frozen=True, kw_only=True)
class CudaRules:
    """The decisions that depend on the architecture.

    Attributes:
        workspace_bytes: of one cuBLAS handle.
        flash: whether the flash attention kernel runs there (compute capability 8.0 and up).
        cudnn_first: whether PyTorch prefers cuDNN's attention there.
    """

    workspace_bytes: int
    flash: bool
    cudnn_first: bool

    def uses_cublas(self, operator: Any) -> bool:
        """True if the operator opens a cuBLAS handle."""
        return operator in _MATMULS

    def attention(self, query: Any, key: Any, value: Any, mask: Any) -> str:
        """Return the SDPA kernel CUDA takes: `flash`, `cudnn`, `efficient` or `math`."""
        sizes = (query.shape[-1], value.shape[-1])
        if query.dtype in _HALF and max(sizes) <= 256 and sizes[0] == sizes[1]:
            small = max(sizes) <= 128 and sizes[0] % 8 == 0
            if self.cudnn_first and small and query.shape[2] > 1:
                return "cudnn"
            if self.flash and mask is None:
                return "flash"
        aligned = all(n % (8 if query.dtype in _HALF else 4) == 0 for n in sizes)
        return "efficient" if aligned and key.shape[1] == query.shape[1] else "math"

    def result(self, operator: Any, out: Any) -> Any:
        """Return the result as CUDA's kernel gives it: statistics of layer norms are never in 16
        bits."""
        if operator is aten.native_layer_norm.default and out[1].dtype in _HALF:
            return (out[0], out[1].float(), out[2].float())
        return out

    def scratch_bytes(self, operator: Any, args: Any, out: Any) -> Iterator[int]:
        """Yield the sizes of what a kernel allocates inside and frees before it returns."""
        rule = _SCRATCH.get(operator)
        return iter(()) if rule is None else rule(args, out)


def _sdpa_flash_backward(args: Any, out: Any) -> Iterator[int]:
    gradient, query, key, output = args[0], args[1], args[2], args[4]
    for tensor in (gradient, output):
        if not tensor.transpose(1, 2).is_contiguous():
            yield tensor.numel() * tensor.element_size()
    batch, heads, length, _ = query.shape
    rows = batch * _in_blocks(length)
    yield from _flash_backward(query, rows, heads, batch * key.shape[2], key.shape[1])


def _flash_attn_backward(args: Any, out: Any) -> Iterator[int]:
    """Yield the scratch of the package flash-attn, whose rows may lie one behind the other."""
    query, key, starts = args[1], args[2], args[6]
    heads, keys = query.shape[-2], key.numel() // (key.shape[-2] * key.shape[-1])
    if starts is None:
        rows = query.shape[0] * _in_blocks(query.shape[1])
    else:  # a block more for each row that ends inside of one
        rows = query.shape[0] + _BLOCK * (starts.numel() - 1)
    yield from _flash_backward(query, rows, heads, keys, key.shape[-2])


def _cudnn_backward(args: Any, out: Any) -> Iterator[int]:
    yield args[1].numel() * 4


def _efficient_forward(args: Any, out: Any) -> Iterator[int]:
    value = args[2]
    if value.shape[-1] > 128 and value.dtype in _HALF:  # more than the registers hold
        yield out[0].numel() * 4


def _efficient_backward(args: Any, out: Any) -> Iterator[int]:
    """Yield the tiles of the queries' gradient; for large heads also those of keys and values."""
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    pairs = batch * heads
    yield pairs * length * 4  # sums of gradient times output
    rows, columns = (64, 64) if size <= 64 else (128, 128) if size <= 128 else (64, 128)
    tiles = -(-length // rows) * -(-size // columns)
    pair_bytes = tiles * (16 + rows * columns * 4)
    if size > 128:
        splits = max(1, min(-(-key.shape[2] // columns), 200 // pairs))
        pair_bytes += 2 * splits * columns * -(-size // columns) * columns * 4
    yield pairs * pair_bytes


def _softmax_backward(args: Any, out: Any) -> Iterator[int]:
    yield args[0].numel() * args[0].element_size()  # gradient times output


def _logsumexp(args: Any, out: Any) -> Iterator[int]:
    yield args[0].numel() * args[0].element_size()
    yield out.numel() * out.element_size()


def _multinomial(args: Any, out: Any) -> Iterator[int]:
    yield args[0].numel() * args[0].element_size()


def _embedding_backward(args: Any, out: Any) -> Iterator[int]:
    """Yield sorted ids, and float32 sums of at most ten rows each before they are added up."""
    ids, width = args[1].numel(), out.shape[-1]
    if ids <= MOST_UNSORTED_IDS:
        return
    segments = min(ids, out.shape[0])
    partials = ids // _ROWS_PER_PARTIAL + segments
    yield (3 * ids + 2 * segments + partials + 2) * 8
    yield partials * width * 4


_SCRATCH: dict[Any, Callable[[Any, Any], Iterator[int]]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _sdpa_flash_backward,
    aten._flash_attention_backward.default: _flash_attn_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten.logsumexp.default: _logsumexp,
    aten.multinomial.default: _multinomial,
    aten.embedding_dense_backward.default: _embedding_backward,
}


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
    """Dispatch tensors of the CPU as CUDA's: its composites, its autocast."""
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
    """Apply dropout with a mask of one byte an element (`is_fused_kernel_acceptable`)."""
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
