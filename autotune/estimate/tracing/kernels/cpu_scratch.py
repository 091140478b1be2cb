"""What matrix products and attention take for themselves on this processor, found by running one.

oneDNN and MKL choose by instruction set, shape, strides and threads which copies of the operands
they make; no rule of ours could follow that. So each shape that a trace meets is computed once for
real, on zeros, while torch's profiler watches the allocator. Where that would take long it is left
out: beside so large a product the scratch is small (it is of the size of one operand).
Runs in a child only.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from autotune.estimate.records.events import NOWHERE
from autotune.estimate.tracing.kernels.profiler import peak_bytes
from autotune.estimate.tracing.known_values import tensors_in
from autotune.estimate.tracing.operator_work import work_of

aten = torch.ops.aten
_KERNELS = (
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
MOST_FLOPS, MOST_BYTES = 5e9, 1 << 29
"""Larger ones (a tenth of a second, 512 MiB of operands) are not tried."""


def processor() -> str:
    """Return what the scratch depends on, besides the shapes: instruction set and threads."""
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


class CpuScratch:
    """The scratch of each shape met, measured once."""

    def __init__(self) -> None:
        self._bytes_by_shape: dict[Any, int] = {}

    def bytes(self, operator: Any, args: Any, kwargs: Any, out: Any) -> int | None:
        """Return what the operator takes and gives back inside; 0 where that was not measured, None
        of operators that are not asked about."""
        if operator not in _KERNELS:
            return None
        key = (operator, *map(_signature, args), *sorted(kwargs))
        if key not in self._bytes_by_shape:
            work = work_of(operator, operator.name(), args, kwargs, tensors_in(out), NOWHERE)
            cheap = work.flops < MOST_FLOPS and work.moved_bytes < MOST_BYTES
            self._bytes_by_shape[key] = _measured_bytes(operator, args, kwargs) if cheap else 0
        return self._bytes_by_shape[key]


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    return repr(value)


def _measured_bytes(operator: Any, args: Any, kwargs: Any) -> int:
    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype.is_floating_point:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
        return torch.zeros(value.shape, dtype=value.dtype)

    with unset_fake_temporarily(), _disable_current_modes(), torch.no_grad():
        operands = tree_map(real, args), tree_map(real, kwargs)
        try:
            operator(*operands[0], **operands[1])  # the first call may set something up
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                out = operator(*operands[0], **operands[1])
        except Exception:  # zeros are no possible input of it
            return 0
    result_bytes: int = sum(tensor.untyped_storage().nbytes() for tensor in tensors_in(out))
    return max(peak_bytes(profiler) - result_bytes, 0)
