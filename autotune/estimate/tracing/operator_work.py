"""The work of a dispatched operator: floating point operations, and bytes read and written.

Runs in a child only.
"""

import functools
from typing import Any

import torch

from autotune.estimate.records.events import FLASH_PACKAGE, Work
from autotune.estimate.tracing.values import tensors_in

aten = torch.ops.aten
_VIEWS = (
    *("aten::detach", "aten::empty", "aten::_unsafe_view", "aten::lift", "aten::alias"),
    *("aten::new_empty", "aten::sym_", "prim::", "aten::_local_scalar", "aten::set_"),
)
_ADDING = (aten.addmm.default, aten.addmm_.default, aten.baddbmm.default)
_PRODUCTS = (
    *(aten.mm.default, aten.mm.out, aten.bmm.default, aten._grouped_mm.default),
    *(aten._int_mm.default, *_ADDING),
)
_ADAM_TRAFFIC = 1.75
"""Fused Adam reads parameter, gradient and two moments, and writes three of them: 7 of 4."""


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> int:
    return int(min(tensor.nbytes, tensor.untyped_storage().nbytes()))


def _argument(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Return what an operator's argument of this name is; None where it has none or it was left
    out."""
    names = [argument.name for argument in func._schema.arguments]
    position = names.index(name) if name in names else len(args)
    return kwargs.get(name, args[position] if position < len(args) else None)


def _attention_dims(func: Any, args: Any, kwargs: Any, *, in_package: bool) -> tuple[int, ...]:
    """Return (rows, heads, queries, keys, size).

    Of rows of several lengths one behind the other: the mean of the queries, each with the longest
    row's keys, rather too many.
    """
    query, key = (_argument(func, name, args, kwargs) for name in ("query", "key"))
    if not in_package:
        return (*query.shape[:2], query.shape[2], key.shape[2], query.shape[3])
    starts = _argument(func, "cum_seq_q", args, kwargs)
    if starts is None:
        return (query.shape[0], query.shape[2], query.shape[1], key.shape[1], query.shape[3])
    rows = starts.numel() - 1
    longest = int(_argument(func, "max_k", args, kwargs))
    return (rows, query.shape[1], -(-query.shape[0] // rows), longest, query.shape[2])


def work_of(
    func: Any, name: str, args: Any, kwargs: Any, outs: list[torch.Tensor], region: int
) -> Work:
    """Return the work of an operator."""
    inputs = tensors_in(args, kwargs)
    dtype = _dtype_name((outs or inputs)[0].dtype) if outs or inputs else ""
    kind, flops = "memory", 0
    dims: tuple[int, ...] = ()
    moved_bytes = sum(map(_bytes, inputs)) + sum(map(_bytes, outs))
    if func in _PRODUCTS:
        left, right = args[1:3] if func in _ADDING else args[:2]
        # Of a mixture's grouped product only one side has a matrix for each expert: its rows, or
        # columns, are divided among them.
        batch = left.shape[0] if left.ndim == right.ndim == 3 else 1
        kind, dims = "matmul", (batch, left.shape[-2], left.shape[-1], right.shape[-1])
        flops = 2 * batch * left.shape[-2] * left.shape[-1] * right.shape[-1]
    elif "scaled_dot_product" in name or name.startswith(FLASH_PACKAGE):
        backward = "backward" in name
        kind = "attention_backward" if backward else "attention"
        dims = _attention_dims(func, args, kwargs, in_package=name.startswith(FLASH_PACKAGE))
        causal = _argument(func, "is_causal", args, kwargs) is True
        flops = 4 * dims[0] * dims[1] * dims[2] * dims[3] * dims[4]
        flops = int(flops * (2.5 if backward else 1) * (0.5 if causal else 1))
    elif getattr(func, "is_view", False) or name.startswith(_VIEWS):
        kind, moved_bytes = "view", 0
    elif name == "aten::embedding":
        moved_bytes = 2 * sum(map(_bytes, outs))
    elif "_fused_adam" in name:
        moved_bytes = int(sum(map(_bytes, inputs)) * _ADAM_TRAFFIC)
    return Work(
        operator=name,
        kind=kind,
        dtype=dtype,
        dims=tuple(int(n) for n in dims),
        flops=flops,
        moved_bytes=moved_bytes,
        region=region,
    )
