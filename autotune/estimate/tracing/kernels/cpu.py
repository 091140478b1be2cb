"""What the CPU's kernels do that a trace would not show: copies in another precision, draws.

Sources: aten/src/ATen/TensorIterator.cpp (operands are cast before they are combined; CUDA's
kernels cast as they read), aten/src/ATen/native/cpu/ScatterGatherKernel.cpp (low precision is added
up in float32), aten/src/ATen/native/ReduceOps.cpp (the mean of low precision is that of a copy in
float32, and the logarithm of a sum of exponentials makes these), aten/src/ATen/native/
Distributions.cpp (a draw takes a random number for each choice). gloo gathers into a buffer of its
own as large as what is gathered, and scatters from one (measured with 2 and 4 ranks).
What matrix products and attention take is measured (`cpu_scratch.py`). Known not to be modelled:
the eight bytes of a Python number.
Runs in a child only.
"""

from collections.abc import Iterator
from typing import Any

import torch

aten, c10d = torch.ops.aten, torch.ops.c10d
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_IN_PLACE = (aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor)
_SCATTERED_SUMS = (aten.scatter_add.default, aten.scatter_add_.default)
_MEANS = (aten.mean.default, aten.mean.dim)
_HALF = (torch.float16, torch.bfloat16)


def scratch_bytes(operator: Any, args: Any, out: Any) -> Iterator[int]:
    """Yield sizes of what a kernel allocates inside and frees before it returns."""
    if operator in _ARITHMETIC:
        for tensor in args[:2]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype != out.dtype:
                yield tensor.numel() * out.element_size()
    elif operator in _IN_PLACE:
        yield from _casts_in_place(args[0], args[1])
    elif operator in _SCATTERED_SUMS and out.dtype in _HALF:
        yield 4 * out.numel()
    elif operator in (aten.multinomial.default, aten.logsumexp.default):
        yield args[0].numel() * args[0].element_size()
    elif operator in _MEANS and args[0].dtype in _HALF:
        yield 4 * args[0].numel()
    elif operator in (c10d.allgather_.default, c10d._allgather_base_.default):
        yield _bytes(args[0])
    elif operator is c10d._reduce_scatter_base_.default:
        yield _bytes(args[1])
    elif operator is c10d.reduce_scatter_.default:
        yield _bytes(args[1]) - _bytes(args[0])


def _bytes(value: Any) -> int:
    """Return bytes of a tensor, or of all in lists of them."""
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    return sum(map(_bytes, value))


def _casts_in_place(changed: Any, operand: Any) -> Iterator[int]:
    """Yield bytes of casts: both operands are read, and the result is written, in their common
    type."""
    common = torch.result_type(changed, operand)
    for tensor in (changed, operand, changed):
        if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.dtype != common:
            yield tensor.numel() * common.itemsize
