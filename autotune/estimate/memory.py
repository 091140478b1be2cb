"""From a record of allocations to the memory a device needs. Pure.

`allocated` is what tensors take, rounded as the caching allocator rounds (512 bytes on CUDA);
`reserved` is what the allocator holds for them, found by replaying the record through a model of
it; the process takes its context on top. The verdict is a replay under the device's limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.estimate.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from autotune.estimate.record import Event, MemoryUse, allocations, live_bytes

CUDA_GRANULE, CPU_GRANULE = 512, 1


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What an allocator makes of a record. Bytes.

    Attributes:
        missing_bytes: how far beyond the limit it would have had to go; None where it fits.
        retries: how often it gave its cache back to the driver before it went on.
    """

    use: MemoryUse
    reserved_bytes: int
    retries: int
    missing_bytes: int | None

    @property
    def need(self) -> tuple[bool, int, int]:
        """What orders replays by how much they need."""
        return self.missing_bytes is not None, self.retries, self.reserved_bytes

    def told(self) -> dict[str, Any]:
        """As fields of a `PointReply`."""
        return {
            "peak_allocated_bytes": self.use.peak_bytes,
            "peak_reserved_bytes": self.reserved_bytes,
            "parts": self.use.parts,
            "operator": self.use.operator,
            "phase": self.use.phase,
            "oom": self.missing_bytes is not None,
            "missing_bytes": self.missing_bytes,
            "retries": self.retries,
            "phases": self.use.phases,
        }


def replayed(
    events: Sequence[Event],
    limit_bytes: int | None,
    *,
    expandable_segments: bool,
    use: MemoryUse | None = None,
) -> Replay:
    """Replay a record through the CUDA caching allocator, held to a limit.

    Where it runs out, the reserved bytes are those it would need without a limit.

    Args:
        use: what the record's live storages add up to (`on_cuda`), where that is known already.
    """
    use = use or on_cuda(events)
    free = _run(events, AllocatorSettings(expandable_segments=expandable_segments))
    reserved, retries, missing = free.peak_reserved_bytes, 0, None
    if limit_bytes is not None and free.roomy_limit_bytes > limit_bytes:
        if use.peak_bytes > limit_bytes:
            missing = use.peak_bytes - limit_bytes
        else:  # it may still fit, once the cache is given back
            held = AllocatorSettings(
                limit_bytes=limit_bytes, expandable_segments=expandable_segments
            )
            try:
                allocator = _run(events, held)
                reserved, retries = allocator.peak_reserved_bytes, allocator.retries
            except OutOfMemory as error:
                missing = error.missing_bytes
    return Replay(use=use, reserved_bytes=reserved, retries=retries, missing_bytes=missing)


def on_cuda(events: Sequence[Event]) -> MemoryUse:
    """What live storages add up to, in the allocator's units."""
    return live_bytes(events, CUDA_GRANULE)


def _run(events: Sequence[Event], settings: AllocatorSettings) -> CachingAllocator:
    allocator = CachingAllocator(settings)
    for key, nbytes in allocations(events):
        if nbytes < 0 and key < 0:
            allocator.empty_cache()
        elif nbytes < 0:
            allocator.free(key)
        else:
            allocator.allocate(key, nbytes)
    return allocator


def on_cpu(events: Sequence[Event], limit_bytes: int | None) -> Replay:
    """The CPU has no caching allocator: what tensors take is what the process asks for."""
    use = live_bytes(events, CPU_GRANULE)
    missing = None
    if limit_bytes is not None and use.peak_bytes > limit_bytes:
        missing = use.peak_bytes - limit_bytes
    return Replay(use=use, reserved_bytes=use.peak_bytes, retries=0, missing_bytes=missing)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """What measurements say an estimate is off by, as explicit values.

    measured = (1 + bias) x estimate + offset, give or take `relative_sigma` of that; the offset
    is known to `sigma_bytes`, the bias to `bias_sigma`, and both together to `covariance`.

    Attributes:
        bias: what an allocator takes beyond what it was asked for, relative.
        offset_bytes: what a process takes that no trace shows (context, libraries).
        measurements: how many probes these figures come from; 0: assumed beforehand.
    """

    bias: float = 0.0
    offset_bytes: float = 0.0
    relative_sigma: float = 0.02
    sigma_bytes: float = 0.0
    bias_sigma: float = 0.0
    covariance: float = 0.0
    measurements: int = 0

    def with_noise(self, relative: float) -> "Residual":
        """The same, for estimates that scatter by so much more."""
        return replace(self, relative_sigma=math.hypot(self.relative_sigma, relative))

    def corrected(self, estimate_bytes: float) -> float:
        """What is to be expected of an estimate of the allocator's bytes."""
        return (1 + self.bias) * estimate_bytes + self.offset_bytes

    def sigma(self, estimate_bytes: float) -> float:
        """Standard deviation of what is to be expected."""
        line = self.sigma_bytes**2 + (self.bias_sigma * estimate_bytes) ** 2
        line += 2 * self.covariance * estimate_bytes
        own = self.relative_sigma * self.corrected(estimate_bytes)
        return math.hypot(own, math.sqrt(max(line, 0.0)))

    def probability_above(self, estimate_bytes: float, limit_bytes: float) -> float:
        """Probability that the process needs more than the limit (normal distribution)."""
        distance = self.corrected(estimate_bytes) - limit_bytes
        sigma = max(self.sigma(estimate_bytes), 1.0)
        return 0.5 * (1 + math.erf(distance / sigma / math.sqrt(2)))


def refined(
    prior: Residual, estimated_bytes: Sequence[float], measured_bytes: Sequence[float]
) -> Residual:
    """The residual after measurements: offset and bias move, their uncertainty shrinks.

    Bayesian linear regression with known noise: each probe is a measurement of `offset + bias *
    estimate` with standard deviation `relative_sigma` of what it read. The spread of the probes
    around the new line then takes the place of the assumed noise, where there are at least three.
    """
    if len(estimated_bytes) != len(measured_bytes):
        raise ValueError(
            f"{len(estimated_bytes)} estimates, but {len(measured_bytes)} measured peaks"
        )
    if not estimated_bytes:
        return prior
    pairs = list(zip(estimated_bytes, measured_bytes, strict=True))
    unit = max(estimated_bytes)  # the bias in bytes of this size: both unknowns are alike then
    own = max(prior.sigma_bytes, 1.0), max(prior.bias_sigma * unit, 1e-6)
    weights = [[1 / own[0] ** 2, 0.0], [0.0, 1 / own[1] ** 2]]
    moment = [0.0, 0.0]
    for estimate, measured in pairs:
        noise = max(prior.relative_sigma * measured, 1.0)
        off = measured - prior.corrected(estimate)
        row = (1.0, estimate / unit)
        for i in range(2):
            moment[i] += row[i] * off / noise**2
            for j in range(2):
                weights[i][j] += row[i] * row[j] / noise**2
    (a, b), (_, d) = weights
    offset_variance, bias_variance = 1 / (a - b * b / d), 1 / (d - b * b / a)
    moved = offset_variance * (moment[0] - b / d * moment[1])
    turned = bias_variance * (moment[1] - b / a * moment[0])
    free = prior.bias_sigma > 0
    line = Residual(
        bias=prior.bias + (turned / unit if free else 0.0),
        offset_bytes=prior.offset_bytes + moved,
        relative_sigma=prior.relative_sigma,
        sigma_bytes=math.sqrt(offset_variance),
        bias_sigma=math.sqrt(bias_variance) / unit if free else 0.0,
        covariance=-b / d * offset_variance / unit if free else 0.0,
        measurements=len(pairs),
    )
    return replace(line, relative_sigma=_spread(line, pairs))


def _spread(line: Residual, pairs: Sequence[tuple[float, float]]) -> float:
    """Relative standard deviation of measurements around a line; few change it little."""
    if len(pairs) < 3:
        return line.relative_sigma
    squares = sum((measured / line.corrected(estimate) - 1) ** 2 for estimate, measured in pairs)
    # Two more of the assumed size keep a lucky few from claiming certainty.
    return math.sqrt((squares + 2 * line.relative_sigma**2) / (len(pairs) + 2))
