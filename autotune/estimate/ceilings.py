"""What a device does at best: rates by shape and dtype, bandwidth by size, host time per operator.

Measured once per device by `bench_ceilings.py`, or tabled from a GPU's data sheet for devices one
does not have (`ceilings_of_kind`). Pure.

Between measured shapes a rate is interpolated in log space. Known error, on shapes drawn at random
with odd sizes among them, on a CPU: 17% in the median for matmuls, a factor 2.4 (bf16) or 1.6
(fp32) at the 90th percentile, because kernels have favourite multiples that no smooth rule knows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from typing import Any, NamedTuple, Self

from autotune.facts.device_kinds import DeviceKind

NEIGHBOURS = 8
"""Matmuls of known rate that an unknown one is interpolated from."""
_CLOSE = 0.05
"""Squared distance, in doublings, below which neighbours hardly weigh more for being nearer."""
_LIKE = {"float16": "bfloat16", "bfloat16": "float16"}
"""Dtypes that run at the same rate on the devices that have both."""


class MatmulRate(NamedTuple):
    """(m, k) times (k, n): the mean over the three layouts of a linear layer's training."""

    dtype: str
    m: int
    k: int
    n: int
    flops_per_s: float


class AttentionRate(NamedTuple):
    """Fused attention over rows of `length` tokens. Unmasked means causal: half the operations.

    Operations: 4 * batch * heads * length^2 * head size forward, 2.5 times that backward.
    """

    dtype: str
    length: int
    backward: bool
    masked: bool
    flops_per_s: float


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

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        rows = ("matmul", "attention", "bandwidth", "operators")
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**own, **{name: [list(row) for row in own[name]] for name in rows}}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """From JSON data.

        Raises:
            TypeError, ValueError: the data are not those of `plain`.
        """
        tables = {
            "matmul": tuple(MatmulRate(*row) for row in data["matmul"]),
            "attention": tuple(AttentionRate(*row) for row in data["attention"]),
            "bandwidth": tuple(Bandwidth(*row) for row in data["bandwidth"]),
            "operators": tuple(OperatorRate(*row) for row in data.get("operators", ())),
        }
        return cls(**{**data, **tables})

    # -- rates

    def dtype_for(self, dtype: str) -> str:
        """The dtype whose rates stand for `dtype`: itself where they are known.

        Else its twin of 16 bits; else float32; else the first one known. Known error: float64 runs
        slower than float32 does, 8-bit types may run faster.
        """
        known = self._matmuls
        wishes = (dtype, _LIKE.get(dtype, dtype), "float32")
        return next((wish for wish in wishes if wish in known), next(iter(known)))

    def stand_ins(self, dtypes: Iterable[str]) -> dict[str, str]:
        """Of these dtypes, those without rates of their own, and whose they are given."""
        return {one: self.dtype_for(one) for one in dtypes if self.dtype_for(one) != one}

    def matmul_flops_per_s(self, dtype: str, m: int, k: int, n: int) -> float:
        """Rate of a matmul, from the nearest ones known, weighted by distance in doublings."""
        key = (self.dtype_for(dtype), m, k, n)
        if key not in self._looked_up:
            at = [math.log2(max(size, 1)) for size in (m, k, n)]
            rows = ((math.dist(at, sizes) ** 2, rate) for sizes, rate in self._matmuls[key[0]])
            near = nsmallest(NEIGHBOURS, rows)
            weights = [1 / (squared + _CLOSE) for squared, _ in near]
            total = sum(weight * rate for weight, (_, rate) in zip(weights, near, strict=True))
            self._looked_up[key] = math.exp(total / sum(weights))
        return self._looked_up[key]

    def attention_flops_per_s(
        self, dtype: str, length: int, *, backward: bool, masked: bool
    ) -> float:
        """Rate of fused attention at this length; rows shorter than all known take as long."""
        tables = self._attentions
        wishes = [(name, backward, masked) for name in (self.dtype_for(dtype), "float32")]
        found = next((tables[wish] for wish in wishes if wish in tables), None)
        points = found or next(iter(tables.values()))
        shortest = min(known for known, _ in points)
        return interpolated(points, length) * min(length / shortest, 1.0) ** 2

    def bytes_per_s(self, operator: str, dtype: str, moved_bytes: int) -> float:
        """Rate of an operator that is bound by bandwidth."""
        plain = interpolated(self.bandwidth, moved_bytes)
        rates = self._operators.get(operator)
        if rates is None:
            return plain
        wishes = (dtype, _LIKE.get(dtype), next(iter(rates)))
        own = next(rates[wish] for wish in wishes if wish in rates)
        return own if own > self._most_bytes_per_s else min(own, plain)

    @cached_property
    def _looked_up(self) -> dict[tuple[str, int, int, int], float]:
        return {}

    @cached_property
    def _matmuls(self) -> dict[str, list[tuple[list[float], float]]]:
        tables: dict[str, list[tuple[list[float], float]]] = {}
        for row in self.matmul:
            sizes = [math.log2(size) for size in (row.m, row.k, row.n)]
            tables.setdefault(row.dtype, []).append((sizes, math.log(row.flops_per_s)))
        return tables

    @cached_property
    def _attentions(self) -> dict[tuple[str, bool, bool], list[tuple[float, float]]]:
        tables: dict[tuple[str, bool, bool], list[tuple[float, float]]] = {}
        for row in self.attention:
            key = (row.dtype, row.backward, row.masked)
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


def interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """y at x, straight in log-log between the points, constant beyond them."""
    ordered = sorted(points)
    if x <= ordered[0][0]:
        return ordered[0][1]
    for (left, low), (right, high) in zip(ordered, ordered[1:], strict=False):
        if x <= right:
            way = math.log(x / left) / math.log(right / left)
            return math.exp((1 - way) * math.log(low) + way * math.log(high))
    return ordered[-1][1]


# -- tabled

_SIZES = tuple(4**n for n in range(2, 9))
"""16 to 65536: what matmuls are tabled at, in each dimension."""
_LENGTHS = tuple(4**n for n in range(3, 9))
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MATMUL_SHARE = 0.8
"""Of the peak, for large matmuls: 788 of 989 TFLOP/s measured on an H200 (8192^3, bf16)."""
BANDWIDTH_SHARE = 0.85
"""Of the specified bandwidth: 4.3 of 4.8 TB/s measured for a copy on an H200, less for others."""
KERNEL_S = 2e-6
"""Seconds by which a kernel takes longer than its work at full rate, to fill and drain a GPU.
A guess; it decides what small operators reach."""
ATTENTION_SHARE = {False: 0.55, True: 0.45}
"""Of the peak, for long rows, forward and backward. FlashAttention-2 (arXiv 2307.08691) reports 50
to 73% of an A100's peak forward, less backward, at head sizes of 64 and 128."""
_HALF_LENGTH = 256
"""Length at which attention reaches half of that, read off the same paper's plots (rough)."""
MASKED_SHARE = 0.5
"""What the kernels that take a mask reach of those that do not. A guess."""
OVERHEAD_S = 6e-6
"""Of the host for one dispatched operator. Accounts of PyTorch's way from Python to the launch of
a kernel say 5 to 25 us; views, a third of the operators of a training step, launch none and take
less."""
HOST_SHARE = 0.8


def ceilings_of_kind(kind: DeviceKind) -> Ceilings | None:
    """The ceilings of a GPU one does not have; None where its rates are not known.

    A matmul takes its operations at `MATMUL_SHARE` of the peak plus `KERNEL_S`, and not less than
    its bytes take. Known error: not measured on any device but for the shares quoted above; expect
    a factor of 2 for small operators and for the host. Ranks that hang on it are not to be trusted
    before a probe.
    """
    bandwidth = kind.bandwidth_bytes_per_s
    peaks = {d: r for d, r in kind.matrix_flops_per_s.items() if r is not None and d in _BYTES}
    if bandwidth is None or not peaks:
        return None
    pcie = kind.interconnect.pcie_bytes_per_s
    return Ceilings(
        device=kind.name,
        kind="cuda",
        measured=False,
        matmul=tuple(
            MatmulRate(dtype, m, k, n, _tabled_matmul(dtype, (m, k, n), peak, bandwidth))
            for dtype, peak in peaks.items()
            for m in _SIZES
            for k in _SIZES
            for n in _SIZES
        ),
        attention=tuple(
            AttentionRate(
                dtype, length, backward, masked, _tabled_attention(length, backward, masked) * peak
            )
            for dtype, peak in peaks.items()
            for length in _LENGTHS
            for backward in (False, True)
            for masked in (False, True)
        ),
        bandwidth=tuple(
            Bandwidth(size, size / (size / (BANDWIDTH_SHARE * bandwidth) + KERNEL_S))
            for size in (4**n for n in range(5, 18))
        ),
        overhead_s_per_operator=OVERHEAD_S,
        host_bytes_per_s=None if pcie is None else HOST_SHARE * pcie,
    )


def _tabled_matmul(dtype: str, shape: tuple[int, int, int], peak: float, bandwidth: float) -> float:
    m, k, n = shape
    flops, moved = 2 * m * k * n, _BYTES[dtype] * (m * k + k * n + m * n)
    computing = flops / (MATMUL_SHARE * peak)
    return flops / (max(computing, moved / (BANDWIDTH_SHARE * bandwidth)) + KERNEL_S)


def _tabled_attention(length: int, backward: bool, masked: bool) -> float:
    share = ATTENTION_SHARE[backward] * length / (length + _HALF_LENGTH)
    return share * (MASKED_SHARE if masked else 1.0)
