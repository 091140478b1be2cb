"""Fake tensors by short keys are what torch makes of them without."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.estimate.tracing.fake_dispatch import KEPT_RESULTS, result_of


@pytest.fixture(autouse=True)
def nothing_kept():
    KEPT_RESULTS.clear()
    yield
    KEPT_RESULTS.clear()


class ShortKeys(TorchDispatchMode):
    """Asks as a tracer does."""

    def __init__(self, fake):
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return result_of(self.fake, func, args, kwargs or {})


@contextlib.contextmanager
def short_keys():
    with FakeTensorMode() as fake, ShortKeys(fake):
        yield


def described(tensor):
    fields = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
    return *fields, tensor.device, tensor.requires_grad, tensor.is_inference()


def results(mode):
    """What operators give that differ in one thing that a key has to tell apart."""
    found = []
    with mode:
        for _ in range(2):  # the second time out of the cache
            x, ints = torch.empty(6, 4), torch.ones(6, 4, dtype=torch.int64)
            weight = torch.empty(4, 4, requires_grad=True)
            found += [x + 1, x + 1.0, ints + 1, ints + 1.0, ints + True]
            found += [x @ weight, x @ weight.detach(), x.t() @ x, x.t().contiguous()]
            found += [x[1:], x[1:][1:], x.sum(0), x.sum(0, keepdim=True), x.sum((0, 1))]
            found += [x.to(torch.bfloat16), x.to("meta"), torch.zeros_like(x, dtype=torch.int32)]
            found += [*x.split(2), *x.split([1, 5]), torch.cat([x, x]), torch.cat([x, x], dim=1)]
            with torch.inference_mode():
                scores = torch.empty(6, 4) + 1
                found += [scores, ints + 1]
            torch.set_default_dtype(torch.float64)
            try:
                found += [torch.full((2,), 1.0), torch.arange(3) * 0.5]
            finally:
                torch.set_default_dtype(torch.float32)
            found += [torch.ops.aten._unsafe_view(x, [3, 8]), x.add_(1), x.detach()]
            found += [x, torch.view_as_complex(torch.empty(3, 2)) + 1]
    return [described(tensor) for tensor in found]


def test_results_are_the_same_with_short_keys_and_without():
    assert results(short_keys()) == results(FakeTensorMode())


def test_a_tensor_of_inference_mode_is_no_other_of_its_shape():
    """A reward model scores in inference mode; what it says goes into a tensor made outside."""
    with short_keys():
        rewards = torch.zeros(6, 1)
        with torch.inference_mode():
            scores = torch.empty(6, 1) + 1
            rewards[:, 0] = scores[:, 0]
            rewards[:, 0] = scores[:, 0]
    assert not rewards.is_inference() and scores.is_inference()


def test_an_operator_looked_up_again_is_not_computed_again():
    calls = []

    class Counting(FakeTensorMode):
        def dispatch(self, func, *others):
            calls.append(func)
            return super().dispatch(func, *others)

    with Counting() as fake, ShortKeys(fake):
        x = torch.empty(7, 3)
        x + x
        made = len(calls)
        y = x + x
    assert made > 0
    assert len(calls) == made
    assert described(y)[0] == (7, 3)


def test_what_shares_a_storage_does_so_again():
    """A view, an operator's own argument, and what torch itself keeps nothing of."""
    with short_keys():
        x, product = torch.empty(6, 4), torch.empty(6, 6)
        storage = x.untyped_storage()
        for _ in range(2):
            assert x.t().untyped_storage()._cdata == storage._cdata
            assert torch.ops.aten._unsafe_view(x, [24]).untyped_storage()._cdata == storage._cdata
            assert x.add_(1) is x
            assert torch.mm(x, x.t(), out=product) is product
            top = torch.empty(6, 2), torch.empty(6, 2, dtype=torch.int64)
            assert torch.topk(x, 2, out=top)[0] is top[0]
            assert (x + 1).untyped_storage()._cdata != storage._cdata


def test_what_changes_the_shape_of_its_argument_is_left_to_torch():
    with short_keys():
        for _ in range(2):
            x = torch.empty(6, 4)
            assert x.t_() is x and x.shape == (4, 6)
