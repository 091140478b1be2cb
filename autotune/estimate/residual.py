"""The memory that a device needs, from the allocations of a record. Pure.

`allocated` is what tensors take, rounded as the caching allocator rounds (512 bytes on CUDA);
`reserved` is what the allocator holds for them, found by replaying the record through a model of
it; the process takes its context on top. The verdict is a replay under the device's limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Residual:
    """The error of estimates by what measurements say, as explicit values.

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
        """Return the residual of estimates that scatter by so much more."""
        return replace(self, relative_sigma=math.hypot(self.relative_sigma, relative))

    def corrected(self, estimate_bytes: float) -> float:
        """Return the expected bytes of the process for an estimate of the allocator's."""
        return (1 + self.bias) * estimate_bytes + self.offset_bytes

    def sigma(self, estimate_bytes: float) -> float:
        """Return the standard deviation of the expected bytes."""
        line = self.sigma_bytes**2 + (self.bias_sigma * estimate_bytes) ** 2
        line += 2 * self.covariance * estimate_bytes
        noise = self.relative_sigma * self.corrected(estimate_bytes)
        return math.hypot(noise, math.sqrt(max(line, 0.0)))

    def probability_above(self, estimate_bytes: float, limit_bytes: float) -> float:
        """Return the probability that the process needs more than the limit (normal
        distribution)."""
        distance = self.corrected(estimate_bytes) - limit_bytes
        sigma = max(self.sigma(estimate_bytes), 1.0)
        return 0.5 * (1 + math.erf(distance / sigma / math.sqrt(2)))


def refined(
    prior: Residual, estimated_bytes: Sequence[float], measured_bytes: Sequence[float]
) -> Residual:
    """Return the residual after measurements: offset and bias move, their uncertainty shrinks.

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
    sigmas = max(prior.sigma_bytes, 1.0), max(prior.bias_sigma * unit, 1e-6)
    weights = [[1 / sigmas[0] ** 2, 0.0], [0.0, 1 / sigmas[1] ** 2]]
    moment = [0.0, 0.0]
    for estimate, measured_peak in pairs:
        noise = max(prior.relative_sigma * measured_peak, 1.0)
        off = measured_peak - prior.corrected(estimate)
        row = (1.0, estimate / unit)
        for i in range(2):
            moment[i] += row[i] * off / noise**2
            for j in range(2):
                weights[i][j] += row[i] * row[j] / noise**2
    (a, b), (_, d) = weights
    offset_variance, bias_variance = 1 / (a - b * b / d), 1 / (d - b * b / a)
    offset_change = offset_variance * (moment[0] - b / d * moment[1])
    bias_change = bias_variance * (moment[1] - b / a * moment[0])
    free = prior.bias_sigma > 0
    line = Residual(
        bias=prior.bias + (bias_change / unit if free else 0.0),
        offset_bytes=prior.offset_bytes + offset_change,
        relative_sigma=prior.relative_sigma,
        sigma_bytes=math.sqrt(offset_variance),
        bias_sigma=math.sqrt(bias_variance) / unit if free else 0.0,
        covariance=-b / d * offset_variance / unit if free else 0.0,
        measurements=len(pairs),
    )
    return replace(line, relative_sigma=_spread(line, pairs))


def _spread(line: Residual, pairs: Sequence[tuple[float, float]]) -> float:
    """Return the relative standard deviation of measurements around a line; few change it
    little."""
    if len(pairs) < 3:
        return line.relative_sigma
    squares = sum(
        (measured_peak / line.corrected(estimate) - 1) ** 2 for estimate, measured_peak in pairs
    )
    # Two more of the assumed size keep a lucky few from claiming certainty.
    return math.sqrt((squares + 2 * line.relative_sigma**2) / (len(pairs) + 2))
