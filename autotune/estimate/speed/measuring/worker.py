"""Measures the ceilings of one device: the CPU, or a CUDA device. Runs in a child only.

What is measured is what training meets: operands that are not in the caches (they are cut out of a
buffer larger than those), results that stay alive for a while, the three layouts of a linear
layer. Operators that bytes alone do not tell the time of are measured by name. Not covered:
attention heads of other sizes than 64, clocks that fall after minutes of load.
"""

import contextlib
import math
import os
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from autotune.estimate.speed.ceilings import (
    AttentionRate,
    Bandwidth,
    Ceilings,
    MatmulRate,
    OperatorRate,
)
from autotune.estimate.speed.measuring.clock import Clock, CudaClock
from autotune.estimate.speed.step_time import BACKWARD
from autotune.estimate.tracing.operator_work import work_of
from autotune.plain_data import to_plain
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.proc import processor_wait_seconds
from autotune.space.trl_config import CUDNN_LAST

aten = torch.ops.aten
WIDTH = 4096
HIDDEN = 256
Cut = Callable[..., torch.Tensor]
"""Makes an operand of a shape."""
Operands = Callable[[], tuple[Any, ...]]


def operator_calls(cut: Cut, elements: int) -> Iterator[tuple[Any, Operands]]:
    """Yield the operators that training spends time in, each with a function that makes
    operands."""
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
    """Return the seconds of the host for one dispatched operator, views among them.

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


HEADS, HEAD_SIZE = 4, 64
POOL = 16
"""Operands that take turns, where the buffer holds as many."""
KEPT_BYTES = 1 << 26
"""Results that stay alive take at most about this."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of what is measured.

    Attributes:
        dtypes: of matmuls and attention; those that the device cannot are left out.
        matmul: m, k and n: every combination of at most `matmul_flops`, the smallest first.
        call_seconds: once a matmul takes longer, no larger one is measured: its rate is that of the
            nearest (a CPU without bfloat16 computes it at 1 GFLOP/s, and all would take minutes).
        attention: lengths, of `attention_tokens` in one call (or one row).
        moved_bytes: of elementwise operators.
        operator_elements: of the operators that are measured by name.
        buffer_bytes: operands are cut out of at least this much.
        seconds: for one figure, about; the least number of calls may take longer.
        overhead_seconds: for the host's time for one operator.
    """

    dtypes: tuple[str, ...]
    matmul: tuple[int, ...]
    matmul_flops: float
    call_seconds: float
    attention: tuple[int, ...]
    attention_tokens: int
    moved_bytes: tuple[int, ...]
    operator_elements: int
    buffer_bytes: int
    seconds: float
    overhead_seconds: float


CPU = Sizes(
    dtypes=("bfloat16", "float32"),
    matmul=(16, 64, 256, 1024, 4096),
    matmul_flops=2.2e9,
    call_seconds=0.02,
    attention=(16, 64, 256, 1024),
    attention_tokens=512,
    moved_bytes=tuple(12 * 4**n for n in range(5, 13)),
    operator_elements=1 << 20,
    buffer_bytes=1 << 26,
    seconds=0.004,
    overhead_seconds=1.0,
)
CUDA = Sizes(
    dtypes=("bfloat16", "float16", "float32"),
    matmul=(16, 128, 1024, 8192),
    matmul_flops=2e12,
    call_seconds=math.inf,
    attention=(32, 128, 512, 2048, 8192),
    attention_tokens=16384,
    moved_bytes=tuple(12 * 4**n for n in range(6, 14)),
    operator_elements=1 << 24,
    buffer_bytes=1 << 29,
    seconds=0.01,
    overhead_seconds=1.0,
)


def measure(path: Path) -> None:
    """Answer `request.json` (`device_kind`, `device_index`, `threads`) with `ceilings`
    (`Ceilings`) and `processor_wait_share`, of the time that threads waited for a core.

    `sizes` in the request replaces fields of `Sizes`.
    """
    folder = ChildFolder(path=path)
    request = read_json(folder.request) or {}
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in request.get("sizes", {}).items()
    }
    if request["device_kind"] == "cuda":
        # Read when CUDA starts, which it has not yet; the index is NVML's, as everywhere.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = str(request["device_index"])
        os.environ[CUDNN_LAST] = "1"  # cuDNN's attention is measured by name
        bench = Bench(CudaClock(torch.device("cuda", 0)), replace(CUDA, **sizes))
    else:
        bench = Bench(Clock(torch.device("cpu")), replace(CPU, **sizes))
    began, wait_before = time.monotonic(), processor_wait_seconds()
    ceilings = to_plain(bench.ceilings())
    share = None
    if wait_before is not None and (wait_after := processor_wait_seconds()) is not None:
        share = (wait_after - wait_before) / (time.monotonic() - began) / request["threads"]
    write_json(folder.reply, {"ceilings": ceilings, "processor_wait_share": share})


class Bench:
    """A device under measurement, with the buffer that operands are cut out of."""

    def __init__(self, clock: Clock, sizes: Sizes) -> None:
        self._clock, self._sizes = clock, sizes
        self._buffer = torch.empty(0)
        self._next = 0

    def ceilings(self) -> Ceilings:
        """Measure all rates and times of the device."""
        overhead = overhead_s_per_operator(self._clock, self._sizes.overhead_seconds)
        bandwidth = tuple(self._bandwidth())
        matmul: list[MatmulRate] = []
        attention: list[AttentionRate] = []
        operators: list[OperatorRate] = []
        for dtype in filter(self._clock.can, self._sizes.dtypes):
            self._use(dtype)
            matmul += self._matmuls(dtype)
            attention += self._attention(dtype)
            operators += self._operators(dtype)
        return Ceilings(
            device=self._clock.name,
            kind=self._clock.kind,
            measured=True,
            matmul=tuple(matmul),
            attention=tuple(attention),
            bandwidth=bandwidth,
            operators=tuple(operators),
            overhead_s_per_operator=overhead,
            host_bytes_per_s=self._clock.host_bytes_per_s(),
        )

    # -- operands and results

    def _use(self, dtype: str) -> None:
        """Let operands be of this dtype from now on."""
        kind = getattr(torch, dtype)
        largest = 2 * max(self._sizes.matmul) ** 2
        elements = max(self._sizes.buffer_bytes // kind.itemsize, largest)
        self._buffer = torch.empty(0)
        self._buffer = torch.empty(elements, dtype=kind, device=self._clock.device).uniform_(-1, 1)

    def _cut(self, *shape: int) -> torch.Tensor:
        """Return the next piece of the buffer; its first one again where it ends."""
        elements = math.prod(shape)
        if self._next + elements > self._buffer.numel():
            self._next = 0
        piece = self._buffer[self._next : self._next + elements]
        self._next += elements
        return piece.view(shape)

    def _seconds(self, operation: Any, operands: Callable[[], tuple[Any, ...]]) -> float:
        """Return the time of an operation on ever other operands, of which some results stay
        alive."""
        first = operands()
        size = sum(tensor.nbytes for tensor in first if torch.is_tensor(tensor))
        count = max(2, min(POOL, self._buffer.nbytes // max(size, 1)))
        pool = cycle([first, *(operands() for _ in range(count - 1))])
        size = sum(
            tensor.nbytes for tensor in tree_iter(operation(*first)) if torch.is_tensor(tensor)
        )
        kept_results = deque[Any](
            maxlen=max(1, min(self._clock.kept_results, KEPT_BYTES // max(size, 1)))
        )
        return self._clock.seconds(
            lambda: kept_results.append(operation(*next(pool))), self._sizes.seconds
        )

    # -- the figures

    def _bandwidth(self) -> Iterator[Bandwidth]:
        """Yield the rates of products of float32 numbers."""
        self._use("float32")
        for moved_bytes in self._sizes.moved_bytes:
            size = max(moved_bytes // 12, 1)
            seconds = self._seconds(torch.mul, partial(self._vectors, size))
            yield Bandwidth(12 * size, 12 * size / seconds)

    def _vectors(self, size: int) -> tuple[Any, ...]:
        return self._cut(size), self._cut(size)

    def _matmuls(self, dtype: str) -> Iterator[MatmulRate]:
        """Yield the rates of a linear layer's output and both of its gradients."""
        most_flops = self._sizes.matmul_flops
        for m, k, n in sorted(product(self._sizes.matmul, repeat=3), key=math.prod):
            flops = 2 * m * k * n
            if flops > most_flops:
                return
            layouts = (self._output, self._input_gradient, self._weight_gradient)
            seconds = [self._seconds(torch.mm, partial(layout, m, k, n)) for layout in layouts]
            yield MatmulRate(dtype, m, k, n, flops / statistics.mean(seconds))
            if max(seconds) > self._sizes.call_seconds:
                most_flops = flops

    def _output(self, m: int, k: int, n: int) -> tuple[Any, ...]:
        return self._cut(m, k), self._cut(n, k).t()

    def _input_gradient(self, m: int, k: int, n: int) -> tuple[Any, ...]:
        return self._cut(m, k), self._cut(k, n)

    def _weight_gradient(self, m: int, k: int, n: int) -> tuple[Any, ...]:
        return self._cut(k, m).t(), self._cut(k, n)

    def _attention(self, dtype: str) -> Iterator[AttentionRate]:
        """Yield the rates of PyTorch's fused attention, causal and with a mask."""
        for length, masked in product(self._sizes.attention, (False, True)):
            yield from self._attention_of(dtype, length, masked=masked)
            if self._clock.prefers_cudnn(dtype):  # a RuntimeError: it does not take this shape
                with contextlib.suppress(RuntimeError), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    yield from self._attention_of(dtype, length, masked=masked, cudnn=True)

    def _attention_of(
        self, dtype: str, length: int, *, masked: bool, cudnn: bool = False
    ) -> Iterator[AttentionRate]:
        """Yield the rates of one length, forward and backward."""
        batch = max(1, self._sizes.attention_tokens // length)
        shape = (batch, length, HEADS, HEAD_SIZE)
        inputs = tuple(self._cut(*shape).clone().requires_grad_() for _ in range(3))
        mask = None
        if masked:
            square = torch.full((length, length), -math.inf, device=self._clock.device)
            mask = square.triu(1).to(inputs[0].dtype).expand(batch, 1, length, length)
        forward = partial(_attend, mask)
        flops = 4 * math.prod(shape) * length * (1.0 if masked else 0.5)
        seconds = self._seconds(forward, partial(tuple, inputs))
        yield AttentionRate(dtype, length, False, masked, flops / seconds, cudnn)
        out = forward(*inputs)
        upward = torch.ones_like(out)
        backward = partial(torch.autograd.grad, out, inputs, retain_graph=True)
        seconds = self._seconds(backward, partial(tuple, (upward,)))
        yield AttentionRate(dtype, length, True, masked, BACKWARD * flops / seconds, cudnn)

    def _operators(self, dtype: str) -> Iterator[OperatorRate]:
        """Yield the rates of operators that read less, or compute more, than their bytes tell."""
        for func, operands in operator_calls(self._cut, self._sizes.operator_elements):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # not in this dtype
                arguments = operands()
                outs = [result for result in tree_iter(func(*arguments)) if torch.is_tensor(result)]
                work = work_of(func, func.name(), arguments, {}, outs, 0)
                rate = work.moved_bytes / self._seconds(func, operands)
                yield OperatorRate(func.name(), dtype, rate)


def _attend(mask: torch.Tensor | None, *inputs: torch.Tensor) -> Any:
    """Run attention on what a model hands in: heads behind the tokens in memory."""
    attention: Any = F.scaled_dot_product_attention
    heads = (tensor.transpose(1, 2) for tensor in inputs)
    return attention(*heads, attn_mask=mask, is_causal=mask is None)
