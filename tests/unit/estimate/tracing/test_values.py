"""What a fake run answers where a program reads a value."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.estimate.tracing.values import UnknownValues

aten = torch.ops.aten


@pytest.mark.parametrize("read", [aten.item.default, aten._local_scalar_dense.default])
@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, 1.0), (torch.int64, 1), (torch.bool, True)]
)
def test_a_value_that_nobody_knows_is_answered_and_counted(read, dtype, value):
    unknown = UnknownValues()
    with FakeTensorMode(), torch.inference_mode():
        answered, answer = unknown.answer(read, (torch.empty((), dtype=dtype),))
    assert answered
    assert (answer, type(answer)) == (value, type(value))
    assert unknown.policy == {read.name(): 1}


def test_what_says_that_something_is_wrong_is_answered_with_no():
    unknown = UnknownValues()
    with FakeTensorMode():
        flag = torch.empty((), dtype=torch.bool)
        unknown.harmless[flag] = True
        assert unknown.answer(aten.item.default, (flag,)) == (True, False)


def test_other_operators_are_left_alone():
    assert UnknownValues().answer(aten.add.Tensor, ()) == (False, None)
