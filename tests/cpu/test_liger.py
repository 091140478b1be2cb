"""Liger's kernels in a trace: what they keep and what they make."""

from types import SimpleNamespace

import pytest
import torch

from autotune.estimate.records.events import Work
from autotune.estimate.tracing.kernels.liger import _Gated, _Kernels, _Loss, _Norm, chunk_size


def kernels() -> tuple[_Kernels, list[Work]]:
    works: list[Work] = []
    tracer = SimpleNamespace(events=[], works=works, region=0)
    return _Kernels(tracer), works  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "hidden", "words", "size"),
    [
        (8192, 896, 151936, 64),  # 8192 / 170, to the next power of two
        (6144, 896, 151936, 64),
        (2048, 4096, 32000, 256),
        (100, 64, 32, 100),  # never more than there are
    ],
)
def test_logits_are_made_in_chunks_of_a_power_of_two(tokens, hidden, words, size):
    assert chunk_size(tokens, hidden, words) == size


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


@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_makes_its_gradients_and_that_of_a_frozen_head_is_none(trained):
    states = torch.ones(12, 4, requires_grad=True)
    head = torch.ones(16, 4, requires_grad=trained)
    run, works = kernels()
    loss, _ = _Loss.apply(run, states, head, torch.zeros(12, dtype=torch.int64))
    loss.backward()
    assert states.grad is not None and states.grad.shape == (12, 4)
    assert (head.grad is not None) is trained
    assert sum(work.operator == "liger::cross_entropy" for work in works) == 3  # 4 tokens each
