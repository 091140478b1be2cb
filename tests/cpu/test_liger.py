"""Liger's kernels in a trace: what they keep and what they make."""

from types import SimpleNamespace

import torch

from autotune.estimate.records.events import Work
from autotune.estimate.tracing.kernels.liger import _Gated, _Kernels, _Norm


def kernels() -> tuple[_Kernels, list[Work]]:
    works: list[Work] = []
    tracer = SimpleNamespace(events=[], works=works, region=0)
    return _Kernels(tracer), works  # type: ignore[arg-type]


def test_a_norm_writes_into_the_gradient_that_it_gets():
    run, works = kernels()
    states = torch.ones(2, 3, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    out = _Norm.apply(run, states, weight)
    given = torch.ones(2, 3, 8)
    got = torch.autograd.grad(out, (states, weight), given)
    assert got[0].data_ptr() == given.data_ptr()
    assert got[1].shape == (8,)
    assert [work.operator for work in works] == ["liger::rms_norm", "liger::rms_norm_backward"]
    assert works[0].moved_bytes == 2 * 2 * 3 * 8 * 4


def test_a_gated_mlp_writes_gradients_into_what_it_kept():
    gate, up = torch.ones(4, 8, requires_grad=True), torch.ones(4, 8, requires_grad=True)
    out = _Gated.apply(kernels()[0], gate, up)
    got = torch.autograd.grad(out, (gate, up), torch.ones(4, 8))
    assert [one.data_ptr() for one in got] == [gate.data_ptr(), up.data_ptr()]
