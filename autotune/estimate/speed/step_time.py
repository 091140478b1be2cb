"""How long a step takes, from its traced work and the ceilings of a device. Pure.

    time = matmul and attention operations / their rates + bytes of other operators / bandwidth
           + dispatched operators * the host's time for one

Made to rank candidates. Known error: see `benchmarks/speed_model/`. Nothing is known of kernels
that overlap on the device, of waits for single values, or of the trainer's own Python.
On a CPU the parts add. On CUDA the host dispatches while the device computes, and copies run
beside both: a micro-step takes as long as the longest of the three, as if each could run ahead of
the others without end.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from autotune.estimate.records.events import FLASH_PACKAGE, Work
from autotune.estimate.speed.ceilings import Ceilings

TERMS = ("matmul_s", "attention_s", "memory_s", "overhead_s", "transfer_s", "exchange_s")
_ONLY_WHEN_TRACED = ("prim::", "profiler::")
"""Fake tensors dispatch these; real ones do not."""
FORWARD_SHARE = 0.25
"""Of a micro-step's time that of its forward pass: a quarter with checkpointing, a third without;
the smaller is taken."""
BACKWARD = 2.5
"""Operations of an attention's backward pass over those of its forward pass."""


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """Seconds of a micro-step, of an optimizer step, or of both together.

    Attributes:
        memory_s: of operators that are bound by bandwidth.
        overhead_s: of the host, to dispatch.
        transfer_s: of copies between host and device (what offloads knows how much).
        exchange_s: of what processes exchange; nothing hides it.
        overlapped: whether host, device and copies run beside each other (CUDA).
    """

    matmul_s: float = 0.0
    attention_s: float = 0.0
    memory_s: float = 0.0
    overhead_s: float = 0.0
    transfer_s: float = 0.0
    exchange_s: float = 0.0
    overlapped: bool = False

    @property
    def device_s(self) -> float:
        """The seconds of computing alone."""
        return self.matmul_s + self.attention_s + self.memory_s

    @property
    def total(self) -> float:
        """The seconds of all parts: the longest of device, host and copies where they overlap."""
        if self.overlapped:
            return max(self.device_s, self.overhead_s, self.transfer_s) + self.exchange_s
        return self.device_s + self.overhead_s + self.transfer_s + self.exchange_s

    def exposed(self) -> "TimeParts":
        """Return the same total as parts that add: of host and copies, what nothing else hides."""
        if not self.overlapped:
            return self
        overhead = max(self.overhead_s - self.device_s, 0.0)
        transfer = max(self.transfer_s - max(self.device_s, self.overhead_s), 0.0)
        return replace(self, overhead_s=overhead, transfer_s=transfer, overlapped=False)

    def times(self, factor: float) -> "TimeParts":
        """Return the parts, each times `factor`."""
        return replace(self, **{term: factor * getattr(self, term) for term in TERMS})


def with_offloading(time: TimeParts, copy_s: float) -> TimeParts:
    """Return a micro-step whose activations go to the host and come back, each in `copy_s` seconds.

    As TRL does it (1.12, `models/activation_offloading.py`): on a stream of their own. On the way
    out the forward pass runs on, and waits at its end. On the way back each operator of the
    backward pass waits for what it needs, which is fetched no earlier than beside the operator
    before it: none of that counts as hidden. Known error: never measured; some of it is hidden.
    """
    hidden = min(copy_s, FORWARD_SHARE * time.total)
    return replace(time.exposed(), transfer_s=2 * copy_s - hidden)


def with_copies(time: TimeParts, copy_s: float) -> TimeParts:
    """Return a micro-step with copies on the stream that computes: nothing hides them."""
    return replace(time.exposed(), transfer_s=copy_s)


def in_sequence(parts: Iterable[TimeParts], times: Iterable[float] | None = None) -> TimeParts:
    """Return the parts of all, one after the other.

    Args:
        times: how often each is done; None: once.
    """
    exposed = [part.exposed() for part in parts]
    often = [1.0] * len(exposed) if times is None else list(times)
    return TimeParts(
        **{
            term: sum(n * getattr(part, term) for part, n in zip(exposed, often, strict=True))
            for term in TERMS
        }
    )


# -- of traced work


def work_time(
    works: Iterable[tuple[Work, int]], ceilings: Ceilings, *, masked: bool | None = None
) -> TimeParts:
    """Return the seconds of some work, each piece with how often it is done.

    Args:
        masked: whether attention gets a mask (padded or flattened rows) and computes all of it;
            None: as each operator's own count of operations says.
    """
    seconds = dict.fromkeys(TERMS, 0.0)
    works = list(works)
    logits = _logits_dtype([work for work, _ in works])
    for work, times in works:
        if work.operator.startswith(_ONLY_WHEN_TRACED):
            continue
        seconds["overhead_s"] += times * ceilings.overhead_s_per_operator
        if work.kind == "matmul":
            seconds["matmul_s"] += times * _matmul_s(work, ceilings)
        elif work.kind.startswith("attention"):
            seconds["attention_s"] += times * _attention_s(work, ceilings, masked)
        elif work.moved_bytes > 0:
            # What makes indices of floats (argmax, which is slow) does so of the logits.
            dtype = work.dtype if "float" in work.dtype else logits
            rate = ceilings.bytes_per_s(work.operator, dtype, work.moved_bytes)
            seconds["memory_s"] += times * work.moved_bytes / rate
    return TimeParts(**seconds, overlapped=ceilings.kind == "cuda")


def _logits_dtype(works: Sequence[Work]) -> str:
    """Return the dtype of the loss; where no softmax tells it, that of the largest matmul."""
    softmax = [(work.moved_bytes, work.dtype) for work in works if "log_softmax" in work.operator]
    return max(softmax or [(work.flops, work.dtype) for work in works], default=(0, ""))[1]


def _matmul_s(work: Work, ceilings: Ceilings) -> float:
    """Return the seconds of a batch of matmuls, which fills a device like one with all their
    rows."""
    batch, m, k, n = work.dims
    return work.flops / ceilings.matmul_flops_per_s(work.dtype, batch * m, k, n)


def _attention_s(work: Work, ceilings: Ceilings, masked: bool | None) -> float:
    batch, heads, queries, keys, size = work.dims
    backward = work.kind == "attention_backward"
    full_flops = 4 * batch * heads * queries * keys * size * (BACKWARD if backward else 1.0)
    if masked is None or work.operator.startswith(FLASH_PACKAGE):
        masked = work.flops > 0.75 * full_flops
    length = round(math.sqrt(queries * keys))
    cudnn = "cudnn" in work.operator
    rate = ceilings.attention_flops_per_s(
        work.dtype, length, backward=backward, masked=masked, cudnn=cudnn
    )
    return full_flops * (1.0 if masked else 0.5) / rate


# -- of a step


def step_parts(
    micro: Sequence[TimeParts],
    optimizer: TimeParts,
    accumulation: int,
    counts: Sequence[int] | None = None,
) -> TimeParts:
    """Return one optimizer step: `accumulation` mean micro-steps of the sample and the optimizer.

    As `probe/throughput.py` has it, without the wait for data: its line over the timed
    micro-batches is calibrated to their sum, so over a whole sample it is the mean.

    Args:
        counts: how often each of them is in the sample; None: once.
    """
    often = counts or [1] * len(micro)
    share = accumulation / sum(often)
    return in_sequence([*micro, optimizer], [*(share * count for count in often), 1.0])


def tokens_per_s(step_s: float, tokens: Sequence[int], accumulation: int) -> float:
    """Return the real tokens per second, end to end; `tokens` of each micro-batch of the sample."""
    return accumulation * mean(tokens) / step_s
