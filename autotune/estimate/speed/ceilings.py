"""What a device does at best: rates by shape and dtype, bandwidth by size, host time per operator.

Measured once per device by `measuring/worker.py`, or tabled from the data sheet of a GPU that is
not there (`ceilings_of_kind`). Pure.

Between measured shapes a rate is interpolated in log space. Known error, on shapes drawn at random
with odd sizes among them, on a CPU: 17% in the median for matmuls, a factor 2.4 (bf16) or 1.6
(fp32) at the 90th percentile, because kernels have favourite multiples that no smooth rule knows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from typing import NamedTuple

from autotune.facts.device_kinds import DeviceKind, rules_of
from autotune.space.trl_config import USUAL_TORCH

IN_PLACE_BYTES = 48 * 2**20
"""Operators in place are taken to be no slower than at this size: three operands of 16 MiB, half
of what glibc's largest threshold for memory of its own (32 MiB) lets it keep."""
NEIGHBOURS = 8
"""Matmuls of known rate that an unknown one is interpolated from."""
_CLOSE = 0.05
"""Squared distance, in doublings, below which neighbours hardly weigh more for being nearer."""
_SAME_RATE = {"float16": "bfloat16", "bfloat16": "float16", "int32": "bfloat16"}
"""Dtypes that run at the same rate on the devices that have both; sums of products of 8 bits, which
may run faster."""


class MatmulRate(NamedTuple):
    """(m, k) times (k, n): the mean over the three layouts of a linear layer's training."""

    dtype: str
    m: int
    k: int
    n: int
    flops_per_s: float


class AttentionRate(NamedTuple):
    """Fused attention over rows of `length` tokens. Unmasked means causal: half the operations.

    Operations: 4 * batch * heads * length^2 * head size forward, 2.5 times that backward. `cudnn`:
    by cuDNN's kernel (of rows of 8192 with a mask: 260 TFLOP/s on an H200, others 88 on an H100).
    """

    dtype: str
    length: int
    backward: bool
    masked: bool
    flops_per_s: float
    cudnn: bool = False


class Bandwidth(NamedTuple):
    """An elementwise operator that reads and writes `moved_bytes` in all, at `bytes_per_s`."""

    moved_bytes: int
    bytes_per_s: float


class OperatorRate(NamedTuple):
    """An operator with a ceiling of its own, in bytes of its tensors.

    One below the bandwidth computes much for each byte; one above it reads less than all of them.
    The dtype is that of what it reads.
    """

    operator: str
    dtype: str
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Rates of one device.

    Attributes:
        device: its name.
        kind: `cpu` or `cuda`; on `cuda` the host runs ahead of the device.
        measured: on the device itself; False: derived from a data sheet.
        operators: those that the bandwidth alone does not tell the time of.
        overhead_s_per_operator: seconds of the host for one dispatched operator.
        host_bytes_per_s: copies between host and device; None on a CPU, or where not known.
    """

    device: str
    kind: str
    measured: bool
    matmul: tuple[MatmulRate, ...]
    attention: tuple[AttentionRate, ...]
    bandwidth: tuple[Bandwidth, ...]
    overhead_s_per_operator: float
    operators: tuple[OperatorRate, ...] = ()
    host_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("matmul", "attention", "bandwidth"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` of {self.device} holds no rate")
        figures = [row.flops_per_s for row in self.matmul]
        figures += [row.flops_per_s for row in self.attention]
        figures += [row.bytes_per_s for row in self.bandwidth]
        figures += [row.bytes_per_s for row in self.operators]
        if not all(math.isfinite(figure) and figure > 0 for figure in figures):
            raise ValueError(f"every rate of {self.device} must be a number above 0")

    # -- rates

    def dtype_for(self, dtype: str) -> str:
        """Return the dtype whose rates stand for `dtype`: itself where they are known.

        Else its twin of 16 bits; else float32; else the first one known. Known error: float64 runs
        slower than float32 does, 8-bit types may run faster.
        """
        dtypes = self._matmuls
        choices = (dtype, _SAME_RATE.get(dtype, dtype), "float32")
        return next((choice for choice in choices if choice in dtypes), next(iter(dtypes)))

    def matmul_flops_per_s(self, dtype: str, m: int, k: int, n: int) -> float:
        """Return the rate of a matmul, from the nearest ones known, weighted by distance in
        doublings."""
        key = (self.dtype_for(dtype), m, k, n)
        if key not in self._known_rates:
            at = [math.log2(max(size, 1)) for size in (m, k, n)]
            rows = ((math.dist(at, sizes) ** 2, rate) for sizes, rate in self._matmuls[key[0]])
            near = nsmallest(NEIGHBOURS, rows)
            weights = [1 / (squared + _CLOSE) for squared, _ in near]
            total = sum(weight * rate for weight, (_, rate) in zip(weights, near, strict=True))
            self._known_rates[key] = math.exp(total / sum(weights))
        return self._known_rates[key]

    def attention_flops_per_s(
        self, dtype: str, length: int, *, backward: bool, masked: bool, cudnn: bool = False
    ) -> float:
        """Return the rate of fused attention at this length; rows shorter than all known take as
        long. Where cuDNN's are not known, the others' stand for them."""
        tables = self._attentions
        names, kernels = (self.dtype_for(dtype), "float32"), (cudnn, False) if cudnn else (False,)
        choices = [(name, backward, masked, kernel) for name in names for kernel in kernels]
        table = next((tables[choice] for choice in choices if choice in tables), None)
        points = table or next(iter(tables.values()))
        shortest = min(measured_length for measured_length, _ in points)
        return interpolate(points, length) * min(length / shortest, 1.0) ** 2

    def bytes_per_s(self, operator: str, dtype: str, moved_bytes: int) -> float:
        """Return the rate of an operator that is bound by bandwidth.

        What writes in place makes no result: the fall of the rate where new results are too large
        for the allocator to keep (pages are faulted in again each time) is not its own.
        """
        if operator.endswith("_"):
            moved_bytes = min(moved_bytes, IN_PLACE_BYTES)
        plain = interpolate(self.bandwidth, moved_bytes)
        rates = self._operators.get(operator)
        if rates is None:
            return plain
        choices = (dtype, _SAME_RATE.get(dtype), next(iter(rates)))
        operator_rate = next(rates[choice] for choice in choices if choice in rates)
        return (
            operator_rate if operator_rate > self._most_bytes_per_s else min(operator_rate, plain)
        )

    @cached_property
    def _known_rates(self) -> dict[tuple[str, int, int, int], float]:
        return {}

    @cached_property
    def _matmuls(self) -> dict[str, list[tuple[list[float], float]]]:
        tables: dict[str, list[tuple[list[float], float]]] = {}
        for row in self.matmul:
            sizes = [math.log2(size) for size in (row.m, row.k, row.n)]
            tables.setdefault(row.dtype, []).append((sizes, math.log(row.flops_per_s)))
        return tables

    @cached_property
    def _attentions(self) -> dict[tuple[str, bool, bool, bool], list[tuple[float, float]]]:
        tables: dict[tuple[str, bool, bool, bool], list[tuple[float, float]]] = {}
        for row in self.attention:
            key = (row.dtype, row.backward, row.masked, row.cudnn)
            tables.setdefault(key, []).append((row.length, row.flops_per_s))
        return tables

    @cached_property
    def _operators(self) -> dict[str, dict[str, float]]:
        tables: dict[str, dict[str, float]] = {}
        for row in self.operators:
            tables.setdefault(row.operator, {})[row.dtype] = row.bytes_per_s
        return tables

    @cached_property
    def _most_bytes_per_s(self) -> float:
        return max(row.bytes_per_s for row in self.bandwidth)


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at x, straight in log-log between the points, constant beyond them."""
    ordered = sorted(points)
    if x <= ordered[0][0]:
        return ordered[0][1]
    for (left, low), (right, high) in zip(ordered, ordered[1:], strict=False):
        if x <= right:
            share = math.log(x / left) / math.log(right / left)
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
    return ordered[-1][1]


_SIZES = tuple(4**n for n in range(2, 9))
"""16 to 65536: what matmuls are tabled at, in each dimension."""
_LENGTHS = tuple(4**n for n in range(3, 9))
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MATMUL_SHARE = 0.8
"""Share of the peak that large matmuls reach: 792 of 989 TFLOP/s measured on an H200 (8192^3,
bf16)."""
_HOPPER_MATMUL_SHARE = 0.68
"""The same in a training on what prefers cuDNN, which does not keep the clock of ten milliseconds:
with 0.8, 13 trainings on an H100 took 1.13 times as long as estimated, in the median; with this
1.06. Taken from there for Blackwell."""
BANDWIDTH_SHARE = 0.85
"""Share of the specified bandwidth: 4.3 of 4.8 TB/s measured for a copy on an H200, less for
others."""
KERNEL_S = 2e-6
"""Seconds by which a kernel takes longer than its work at full rate, to fill and drain a GPU: 1.9
to 2.6 us of products of 0.8 to 13 MB on an H100 and an H200. Of matmuls a guess."""
_HOPPER_MATMUL_S = 4e-6
"""That of a matmul on what prefers cuDNN: with it and a share of 0.8, 32 shapes of 0.2 GFLOP and
more in bf16 are 7% off what an H100 and an H200 reach, in the median; with 2 us 24%."""
ATTENTION_SHARE = {False: 0.55, True: 0.45}
"""Share of the peak for long rows, forward and backward. FlashAttention-2 (arXiv 2307.08691)
reports 50 to 73% of an A100's peak forward, less backward, at head sizes of 64 and 128."""
_HALF_LENGTH = 256
"""Length at which attention reaches half of that, read off the same paper's plots (rough)."""
MASKED_SHARE = 0.5
"""What the kernels that take a mask reach of those that do not. A guess."""
_HOPPER_ATTENTION_SHARE, _HOPPER_MASKED_SHARE = {False: 0.20, True: 0.23}, 0.41
"""The same two on what prefers cuDNN and has outgrown these kernels: an H100, heads of 64, in 16
bits. Taken from there for Blackwell."""
_CUDNN_ATTENTION_SHARE, _CUDNN_MASKED_SHARE = {False: 0.36, True: 0.36}, 0.74
"""Those of cuDNN's attention, of an H200."""
OVERHEAD_S = 6e-6
"""The host's time for one dispatched operator. Accounts of PyTorch's path from Python to the launch
of a kernel say 5 to 25 us; views, a third of the operators of a training step, launch none and take
less. It is the host's and not the GPU's: expect a factor of 2."""
_HOPPER_OVERHEAD_S = 13e-6
"""That of the servers that these are in: on an H200's host steps that hung on it went as if it were
about 13 us; on an H100's 15 were measured."""


def ceilings_of_kind(kind: DeviceKind) -> Ceilings | None:
    """Return the ceilings of a GPU one does not have; None where its rates are not known.

    A matmul takes its operations at a share of the peak plus the time of a kernel, and not less
    than its bytes take. Known error: of 13 trainings on an H100, most of them at its memory's
    limit, steps take 0.75 to 1.04 of the measured time, 0.94 in the median; of 18 on an H200 0.70
    to 1.30, 0.90. Expect a factor of 2 for small operators and for the host: ranks that hang on it
    are not to be trusted before a probe. Against 28 runs that others have measured on an A100: 0.88
    to 1.18 of their tokens/s (`benchmarks/published_runs`).
    """
    bandwidth = kind.bandwidth_bytes_per_s
    peaks = {d: r for d, r in kind.matrix_flops_per_s.items() if r is not None and d in _BYTES}
    if bandwidth is None or not peaks:
        return None
    return Ceilings(
        device=kind.name,
        kind="cuda",
        measured=False,
        matmul=tuple(
            MatmulRate(dtype, m, k, n, _tabled_matmul(kind, dtype, (m, k, n), peak, bandwidth))
            for dtype, peak in peaks.items()
            for m in _SIZES
            for k in _SIZES
            for n in _SIZES
        ),
        attention=tuple(
            AttentionRate(dtype, length, backward, masked, share * _filled(length) * peak, cudnn)
            for dtype, peak in peaks.items()
            for length in _LENGTHS
            for backward, masked, cudnn, share in _attention_shares(kind, dtype)
        ),
        bandwidth=tuple(
            Bandwidth(size, size / (size / (BANDWIDTH_SHARE * bandwidth) + KERNEL_S))
            for size in (4**n for n in range(5, 18))
        ),
        overhead_s_per_operator=_HOPPER_OVERHEAD_S if _prefers_cudnn(kind) else OVERHEAD_S,
        host_bytes_per_s=kind.interconnect.host_bytes_per_s,
    )


def _tabled_matmul(
    kind: DeviceKind, dtype: str, shape: tuple[int, int, int], peak: float, bandwidth: float
) -> float:
    share, kernel_s = MATMUL_SHARE, KERNEL_S
    if _prefers_cudnn(kind, dtype):
        share, kernel_s = _HOPPER_MATMUL_SHARE, _HOPPER_MATMUL_S
    m, k, n = shape
    flops, moved_bytes = 2 * m * k * n, _BYTES[dtype] * (m * k + k * n + m * n)
    return flops / (
        max(flops / (share * peak), moved_bytes / (BANDWIDTH_SHARE * bandwidth)) + kernel_s
    )


def _prefers_cudnn(kind: DeviceKind, dtype: str = "bfloat16") -> bool:
    """True if PyTorch takes cuDNN's attention first: on Hopper and data-centre Blackwell."""
    if kind.capability is None or dtype == "float32":
        return False
    return rules_of(kind.capability, USUAL_TORCH).cudnn_sdpa_first


def _filled(length: int) -> float:
    """Return the part of its rate for long rows that attention reaches."""
    return length / (length + _HALF_LENGTH)


def _attention_shares(kind: DeviceKind, dtype: str) -> Iterator[tuple[bool, bool, bool, float]]:
    """Yield (backward, masked, cudnn, share of the peak for long rows)."""
    kernels = [(False, ATTENTION_SHARE, MASKED_SHARE)]
    if _prefers_cudnn(kind, dtype):
        kernels = [
            (False, _HOPPER_ATTENTION_SHARE, _HOPPER_MASKED_SHARE),
            (True, _CUDNN_ATTENTION_SHARE, _CUDNN_MASKED_SHARE),
        ]
    for cudnn, causal, masked in kernels:
        for backward, share in causal.items():
            yield backward, False, cudnn, share
            yield backward, True, cudnn, masked * share
