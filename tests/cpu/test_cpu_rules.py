"""What the CPU's kernels take for themselves, against torch's own record of its allocator."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autotune.estimate.tracing.kernels.cpu import peak_bytes, scratch_bytes

aten = torch.ops.aten
HALF, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("operator", "changed", "other", "shape"),
    [
        (aten.mul_.Tensor, HALF, FULL, (640, 1)),
        (aten.div_.Tensor, HALF, FULL, (640, 256)),
        (aten.add_.Tensor, FULL, HALF, (640, 256)),
        (aten.sub_.Tensor, FULL, FULL, (640, 256)),
        (aten.mul_.Tensor, HALF, FULL, ()),
    ],
)
def test_a_change_in_place_casts_to_the_type_in_common(operator, changed, other, shape) -> None:
    operands = torch.ones(640, 256, dtype=changed), torch.ones(shape, dtype=other)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        operator(*operands)
    expected = sum(scratch_bytes(operator, operands, operands[0]))
    assert peak_bytes(profiler) == pytest.approx(expected, abs=64)
