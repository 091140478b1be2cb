"""What a device does at best: rates by shape and dtype, bandwidth by size, host time per operator.

Measured once per device by `measuring/worker.py`, or tabled from a GPU's data sheet for devices one
does not have (`datasheet.py`). Pure.

Between measured shapes a rate is interpolated in log space. Known error, on shapes drawn at random
with odd sizes among them, on a CPU: 17% in the median for matmuls, a factor 2.4 (bf16) or 1.6
(fp32) at the 90th percentile, because kernels have favourite multiples that no smooth rule knows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from typing import Any, NamedTuple, Self

IN_PLACE_BYTES = 48 * 2**20
"""Operators in place are taken to be no slower than at this size: three operands of 16 MiB, half
of what glibc's largest threshold for memory of its own (32 MiB) lets it keep."""
NEIGHBOURS = 8
"""Matmuls of known rate that an unknown one is interpolated from."""
_CLOSE = 0.05
"""Squared distance, in doublings, below which neighbours hardly weigh more for being nearer."""
_LIKE = {"float16": "bfloat16", "bfloat16": "float16", "int32": "bfloat16"}
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

    def plain(self) -> dict[str, Any]:
        """Return the rates as JSON data."""
        rows = ("matmul", "attention", "bandwidth", "operators")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, **{name: [list(row) for row in fields[name]] for name in rows}}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """Return the rates that JSON data hold.

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
        """Return the dtype whose rates stand for `dtype`: itself where they are known.

        Else its twin of 16 bits; else float32; else the first one known. Known error: float64 runs
        slower than float32 does, 8-bit types may run faster.
        """
        dtypes = self._matmuls
        wishes = (dtype, _LIKE.get(dtype, dtype), "float32")
        return next((wish for wish in wishes if wish in dtypes), next(iter(dtypes)))

    def matmul_flops_per_s(self, dtype: str, m: int, k: int, n: int) -> float:
        """Return rate of a matmul, from the nearest ones known, weighted by distance in
        doublings."""
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
        self, dtype: str, length: int, *, backward: bool, masked: bool, cudnn: bool = False
    ) -> float:
        """Return rate of fused attention at this length; rows shorter than all known take as long.
        Where cuDNN's are not known, the others' stand for them."""
        tables = self._attentions
        names, kernels = (self.dtype_for(dtype), "float32"), (cudnn, False) if cudnn else (False,)
        wishes = [(name, backward, masked, kernel) for name in names for kernel in kernels]
        table = next((tables[wish] for wish in wishes if wish in tables), None)
        points = table or next(iter(tables.values()))
        shortest = min(measured_length for measured_length, _ in points)
        return interpolate(points, length) * min(length / shortest, 1.0) ** 2

    def bytes_per_s(self, operator: str, dtype: str, moved_bytes: int) -> float:
        """Return rate of an operator that is bound by bandwidth.

        What writes in place makes no result: the fall of the rate where new results are too large
        for the allocator to keep (pages are faulted in again each time) is not its own.
        """
        if operator.endswith("_"):
            moved_bytes = min(moved_bytes, IN_PLACE_BYTES)
        plain = interpolate(self.bandwidth, moved_bytes)
        rates = self._operators.get(operator)
        if rates is None:
            return plain
        wishes = (dtype, _LIKE.get(dtype), next(iter(rates)))
        operator_rate = next(rates[wish] for wish in wishes if wish in rates)
        return (
            operator_rate if operator_rate > self._most_bytes_per_s else min(operator_rate, plain)
        )

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
    """y at x, straight in log-log between the points, constant beyond them."""
    ordered = sorted(points)
    if x <= ordered[0][0]:
        return ordered[0][1]
    for (left, low), (right, high) in zip(ordered, ordered[1:], strict=False):
        if x <= right:
            way = math.log(x / left) / math.log(right / left)
            return math.exp((1 - way) * math.log(low) + way * math.log(high))
    return ordered[-1][1]
