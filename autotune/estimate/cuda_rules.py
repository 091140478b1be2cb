"""What CUDA does that a trace on the CPU would not show: kernels chosen, scratch, workspaces.

Sources: aten/src/ATen/native/transformers/cuda/ (attention) and
aten/src/ATen/cuda/CublasHandlePool.cpp (workspaces).
Assumed, not read: that the backward kernels of cuDNN and of the efficient attention take one
float32 copy of the queries' gradient, as flash does. Known not to be modelled: scratch of cuBLASLt
and of reductions (at most a few MiB).
Runs in a child only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
_MATMULS = (
    *(aten.mm.default, aten.mm.out, aten.bmm.default),
    *(aten.addmm.default, aten.addmm_.default, aten.baddbmm.default),
)
_OTHER_BACKWARD = (
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
)
_HALF = (torch.float16, torch.bfloat16)
_BLOCK = 128
"""Queries that flash attention takes at once."""


def _in_blocks(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def _flash_backward(query: Any, rows: int, heads: int, keys: int, key_heads: int) -> Iterator[int]:
    """What flash attention's backward pass allocates (flash_api.cpp, mha_bwd and mha_varlen_bwd).

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
    """What the architecture decides.

    Attributes:
        workspace_bytes: of one cuBLAS handle.
        flash: whether the flash attention kernel runs there (compute capability 8.0 and up).
        cudnn_first: whether PyTorch prefers cuDNN's attention there.
    """

    workspace_bytes: int
    flash: bool
    cudnn_first: bool

    def uses_cublas(self, operator: Any) -> bool:
        """Whether the operator opens a cuBLAS handle."""
        return operator in _MATMULS

    def attention(self, query: Any, key: Any, value: Any, mask: Any) -> str:
        """The SDPA kernel CUDA takes: `flash`, `cudnn`, `efficient` or `math`."""
        sizes = (query.shape[-1], value.shape[-1])
        if query.dtype in _HALF and max(sizes) <= 256 and sizes[0] == sizes[1]:
            if self.cudnn_first and max(sizes) <= 128 and query.shape[2] > 1:
                return "cudnn"
            if self.flash and mask is None:
                return "flash"
        return "efficient" if all(n % 4 == 0 for n in sizes) else "math"

    def scratch_bytes(self, operator: Any, args: Any, out: Any) -> Iterator[int]:
        """Sizes of what a kernel allocates inside and frees before it returns."""
        if operator in _OTHER_BACKWARD:  # by their workspaces' purpose: dq is added up in float32
            yield args[1].numel() * 4
        elif operator is aten._scaled_dot_product_flash_attention_backward.default:
            query, key = args[1], args[2]
            batch, heads, length, _ = query.shape
            rows = batch * _in_blocks(length)
            yield from _flash_backward(query, rows, heads, batch * key.shape[2], key.shape[1])
        elif operator is aten._flash_attention_backward.default:
            query, key, starts = args[1], args[2], args[6]
            heads, keys = query.shape[-2], key.numel() // (key.shape[-2] * key.shape[-1])
            if starts is None:
                rows = query.shape[0] * _in_blocks(query.shape[1])
            else:  # a block more for each row that ends inside of one
                rows = query.shape[0] + _BLOCK * (starts.numel() - 1)
            yield from _flash_backward(query, rows, heads, keys, key.shape[-2])
        elif operator in (aten.logsumexp.default, aten.multinomial.default):
            yield args[0].numel() * args[0].element_size()
