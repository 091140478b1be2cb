"""What the CPU does that a trace would not show: operands are cast before they are combined.

Source: aten/src/ATen/TensorIterator.cpp (CUDA's kernels cast as they read). Known not to be
modelled, as no GPU has it: scratch of oneDNN's matrix products in low precision and of the CPU's
attention kernel, and the eight bytes of a Python number.
Runs in a child only.
"""

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


def scratch_bytes(operator: Any, args: Any, out: Any) -> Iterator[int]:
    """Sizes of what a kernel allocates inside and frees before it returns."""
    if operator in _ARITHMETIC:
        for tensor in args[:2]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype != out.dtype:
                yield tensor.numel() * out.element_size()
