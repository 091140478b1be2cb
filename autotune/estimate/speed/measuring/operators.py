"""Operators of `measuring/worker.py` that bytes alone do not tell the time of; and the host's time.

Runs in a child only.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.estimate.speed.measuring.clock import Clock

aten = torch.ops.aten
WIDTH = 4096
HIDDEN = 256
Cut = Callable[..., torch.Tensor]
"""Makes an operand of a shape."""
Operands = Callable[[], tuple[Any, ...]]


def operator_calls(cut: Cut, elements: int) -> Iterator[tuple[Any, Operands]]:
    """(operator, its operands, made afresh) of those that training spends time in."""
    rows = max(elements // WIDTH, 1)

    def wide() -> torch.Tensor:
        return cut(rows, WIDTH)

    dtype, device = wide().dtype, wide().device
    labels = torch.randint(0, WIDTH, (rows,), device=device)
    tokens = torch.randint(0, WIDTH, (max(elements // HIDDEN, 1),), device=device)
    unit, count = torch.ones((), device=device).to(dtype), torch.tensor(float(rows)).to(wide())
    logs, soft = torch.log_softmax(wide(), -1), torch.softmax(wide(), -1)
    yield aten.exp.default, lambda: (wide(),)
    yield aten.pow.Tensor_Scalar, lambda: (wide(), 2)
    yield aten.silu.default, lambda: (wide(),)
    yield aten.silu_backward.default, lambda: (wide(), wide())
    yield aten.gelu.default, lambda: (wide(),)
    yield aten.gelu_backward.default, lambda: (wide(), wide())
    yield aten.sum.dim_IntList, lambda: (wide(), [0], True)
    yield aten.mean.dim, lambda: (wide(), [-1], True)
    yield aten.argmax.default, lambda: (wide(), -1)
    yield aten._softmax.default, lambda: (wide(), -1, False)
    yield aten._softmax_backward_data.default, lambda: (wide(), soft, -1, dtype)
    yield aten._log_softmax.default, lambda: (wide(), -1, False)
    yield aten._log_softmax_backward_data.default, lambda: (wide(), logs, -1, dtype)
    yield aten.nll_loss_forward.default, lambda: (wide(), labels, None, 1, -100)
    yield aten.nll_loss_backward.default, lambda: (unit, wide(), labels, None, 1, -100, count)
    yield aten.embedding.default, lambda: (cut(WIDTH, HIDDEN), tokens)
    yield (
        aten.embedding_dense_backward.default,
        lambda: (cut(len(tokens), HIDDEN), tokens, WIDTH, -1, False),
    )


class _Count(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def overhead_s_per_operator(clock: Clock, enough_s: float) -> float:
    """Return seconds of the host for one dispatched operator, views among them.

    Forward and backward, in mixed precision, of a transformer so small that the device has nothing
    to do; half of the steps with checkpointing. Known error: what is computed again under
    checkpointing costs the host more per operator than the rest (2 times as much on a CPU), mixed
    precision more than float32 (1.6 times), and the trainer's own Python comes on top.
    """
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = transformers.Qwen2ForCausalLM(config).to(clock.device).train()
    tokens = torch.ones((1, 8), dtype=torch.int64, device=clock.device)
    plain = _seconds_per_operator(clock, model, tokens, enough_s / 2)
    with warnings.catch_warnings():  # newer versions have another name for it
        warnings.simplefilter("ignore")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return (plain + _seconds_per_operator(clock, model, tokens, enough_s / 2)) / 2


def _seconds_per_operator(clock: Clock, model: Any, tokens: torch.Tensor, enough_s: float) -> float:
    half = torch.bfloat16 if clock.can("bfloat16") else torch.float16

    def step() -> None:
        with torch.autocast(clock.kind, dtype=half):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()

    step()
    counter = _Count()
    with counter:
        step()
    clock.synchronize()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < enough_s:
        start = time.perf_counter()
        step()
        clock.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) / counter.number
