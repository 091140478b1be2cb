"""What the CPU's kernels do that a trace would not show: casts, draws, scratch.

Sources: aten/src/ATen/TensorIterator.cpp (operands are cast before they are combined; CUDA's
kernels cast as they read), aten/src/ATen/native/cpu/ScatterGatherKernel.cpp (low precision is added
up in float32), aten/src/ATen/native/ReduceOps.cpp (the mean of low precision is that of a copy in
float32, and the logarithm of a sum of exponentials makes these), aten/src/ATen/native/
Distributions.cpp (a draw takes a random number for each choice). gloo gathers into a buffer of its
own as large as what is gathered, and scatters from one (measured with 2 and 4 ranks).
Known not to be modelled: the eight bytes of a Python number.

What matrix products and attention take is measured (`CpuScratch`): oneDNN and MKL choose by
instruction set, shape, strides and threads which copies of the operands they make; no rule of ours
could follow that. So each shape that a trace meets is computed once for real, on zeros, while
torch's profiler watches the allocator. Where that would take long it is left out: beside so large a
product the scratch is small (it is of the size of one operand). Runs in a child only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from autotune.estimate.records.events import NOWHERE
from autotune.estimate.tracing.operator_work import work_of
from autotune.estimate.tracing.values import tensors_in

aten, c10d = torch.ops.aten, torch.ops.c10d
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_IN_PLACE = (aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor)
_SCATTERED_SUMS = (aten.scatter_add.default, aten.scatter_add_.default)
_MEANS = (aten.mean.default, aten.mean.dim)
_HALF = (torch.float16, torch.bfloat16)
_KERNELS = (
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
MOST_FLOPS, MOST_BYTES = 5e9, 1 << 29
"""Larger ones (a tenth of a second, 512 MiB of operands) are not tried."""


def scratch_bytes(operator: Any, args: Any, out: Any) -> Iterator[int]:
    """Yield the sizes of what a kernel allocates inside and frees before it returns."""
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
    """Return the bytes of a tensor, or of all in lists of them."""
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    return sum(map(_bytes, value))


def _casts_in_place(changed: Any, operand: Any) -> Iterator[int]:
    """Yield the bytes of casts: both operands are read, and the result is written, in their common
    type."""
    common = torch.result_type(changed, operand)
    for tensor in (changed, operand, changed):
        if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.dtype != common:
            yield tensor.numel() * common.itemsize


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


def peak_bytes(profiler: Any) -> int:
    """Return the peak of the bytes given out while the profiler ran (`profile_memory=True`)."""
    return max(phase_peaks(profiler).values(), default=0)


def phase_peaks(profiler: Any, marks: Sequence[tuple[int, str]] = ()) -> dict[str, int]:
    """Return that peak of each phase.

    Args:
        marks: (`time.time_ns`, the phase that begins then), in order.
    """
    live: dict[int, int] = {}
    current, at, phase = 0, 0, ""
    peaks: dict[str, int] = {}
    for when, size, address in sorted(_allocations(profiler)):
        while at < len(marks) and marks[at][0] <= when:
            phase, at = marks[at][1], at + 1
        if size > 0:
            live[address] = size
            current += size
            peaks[phase] = max(peaks.get(phase, 0), current)
        else:
            current -= live.pop(address, 0)
    return peaks


def _allocations(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """Yield (time, bytes or their negative, address) of each event of the allocator, in no
    order."""
    nodes = list(profiler.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        if node.tag == _EventType.Allocation:
            fields = node.extra_fields
            yield node.start_time_ns, fields.alloc_size, fields.ptr
        nodes.extend(node.children)
