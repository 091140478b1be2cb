"""What is expected of each candidate: what children traced, as estimates; and what measurements
teach about them. Pure, but for files that keep it."""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.residual import Residual, refined
from autotune.estimate.speed.calibration import Coefficients, calibrated
from autotune.plan.least_memory import LOWER_BOUND
from autotune.probe.protocol import Measurement
from autotune.search.record import Record
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness

HOPELESS = 0.95
"""Candidates that run out of memory with more than this probability are never probed."""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The estimates of a space, and what is assumed of the device before it was measured.

    Attributes:
        estimates: by the candidate's key.
        prior: what a process takes beyond the estimate, before any probe.
        limit_bytes: what a probe may take.
        cut: whether there was no time to trace: they are by formula, and of memory alone.
    """

    estimates: Mapping[str, Estimate]
    prior: Residual
    limit_bytes: int
    cut: bool = False

    def pairs(self, records: Sequence[Record]) -> Iterator[tuple[Estimate, Measurement]]:
        """Yield the estimate and the measurement of each probe that ended well and was
        estimated."""
        for record in records:
            estimate, measurement = self.estimates.get(record.candidate.key), record.measurement
            if estimate is not None and measurement is not None and measurement.outcome == "ok":
                yield estimate, measurement

    def residual(self, records: Sequence[Record]) -> Residual:
        """Return what the probes so far say of the estimates: an offset, a spread, how sure both
        are."""
        estimated_bytes, measured_bytes = [], []
        for estimate, measurement in self.pairs(records):
            if estimate.traced and measurement.peak_memory_bytes is not None:
                estimated_bytes.append(float(estimate.own_reserved_bytes))
                process_bytes = measurement.peak_memory_bytes - (measurement.vllm_bytes or 0)
                measured_bytes.append(float(process_bytes))
        return refined(self.prior, estimated_bytes, measured_bytes)

    def speed(self, records: Sequence[Record]) -> Coefficients:
        """Return what the probes so far say of the estimated step times: a factor for each of their
        parts, and how sure these are."""
        parts, measured_s = [], []
        for estimate, measurement in self.pairs(records):
            if estimate.time_parts is not None and measurement.step_time_s:
                parts.append(estimate.time_parts)
                measured_s.append(measurement.step_time_s)
        return calibrated(parts, measured_s)

    def speeds(self) -> dict[str, float]:
        """Return expected tokens per second before any probe, by key, where there is an estimate of
        it."""
        pairs = ((key, estimate.tokens_per_s) for key, estimate in self.estimates.items())
        return {key: speed for key, speed in pairs if speed is not None}

    def probability_of_oom(self, candidate: Candidate, residual: Residual) -> float | None:
        """Return probability that the candidate needs more than the limit; None: nothing is
        known."""
        estimate = self.estimates.get(candidate.key)
        if estimate is None:
            return None
        if estimate.method == LOWER_BOUND:
            return 1.0
        if estimate.server is not None and estimate.server.missing_bytes is not None:
            return 1.0
        sigma = estimate.sigma_bytes / max(estimate.peak_memory_bytes, 1)
        if not estimate.traced:
            residual = dataclasses.replace(
                residual, relative_sigma=max(residual.relative_sigma, sigma)
            )
        residual = residual.with_noise(estimate.continued_sigma if estimate.traced else 0.0)
        limit = self.limit_bytes - estimate.vllm_bytes
        return residual.probability_above(estimate.own_reserved_bytes, limit)

    def hopeless(
        self, candidates: Sequence[Candidate], records: Sequence[Record]
    ) -> frozenset[str]:
        """Return keys of candidates that are not worth a probe; never of all.

        Where nothing is expected to fit, the leanest is left: a measurement has to say so.
        """
        residual = self.residual(records)
        out = {
            candidate.key
            for candidate in candidates
            if self.beyond_host(candidate.key)
            or not self._at_most(candidate)
            and (self.probability_of_oom(candidate, residual) or 0.0) > HOPELESS
        }
        if len(out) == len(candidates) and candidates:
            out.discard(min(candidates, key=self._leanness).key)
        return frozenset(out)

    def beyond_host(self, key: str) -> bool:
        """True if a candidate is as good as certain to take more of the host than there is."""
        estimate = self.estimates.get(key)
        return estimate is not None and (estimate.p_host_oom or 0.0) > HOPELESS

    def _leanness(self, candidate: Candidate) -> tuple[Any, ...]:
        estimate = self.estimates[candidate.key]
        lean = estimate.at_least, estimate.peak_memory_bytes, expected_leanness(candidate)
        return self.beyond_host(candidate.key), *lean

    def _at_most(self, candidate: Candidate) -> bool:
        estimate = self.estimates.get(candidate.key)
        return estimate is not None and estimate.at_most

    def plain(self) -> dict[str, Any]:
        """Return the expectations as JSON data; `from_plain` reads them."""
        return {
            "schema": 1,
            "prior": dataclasses.asdict(self.prior),
            "limit_bytes": self.limit_bytes,
            "estimates": {
                key: {**estimate.plain(), "fits": estimate.fits}
                for key, estimate in self.estimates.items()
            },
        }


# -- held against measurements


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The estimates beside the probes' measurements.

    Attributes:
        residual: the correction of memory estimates, and its uncertainty.
        memory_errors: of each probe that was ok: corrected estimate over measurement, less 1.
        speed: the correction of step times, and its uncertainty.
        speed_errors: of each probe that was ok: corrected step time over measurement, less 1.
    """

    residual: Residual
    memory_errors: tuple[float, ...]
    speed: Coefficients
    speed_errors: tuple[float, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        has_speed = bool(self.speed_errors)
        return {
            "residual": dataclasses.asdict(self.residual),
            "memory_error_median": _median(self.memory_errors),
            "memory_error_max": _most(self.memory_errors),
            "speed_factors": self.speed.factors if has_speed else None,
            "speed_residual": self.speed.residual if has_speed else None,
            "speed_measurements": self.speed.measurements,
            "speed_error_median": _median(self.speed_errors),
            "speed_error_max": _most(self.speed_errors),
        }

    def lines(self) -> list[str]:
        """Return the same in sentences."""
        lines = []
        for what, errors in (
            ("estimated peaks", self.memory_errors),
            ("estimated step times", self.speed_errors),
        ):
            median, largest = _median(errors), _most(errors)
            if median is not None and largest is not None:
                lines.append(
                    f"{what}, corrected by these probes, were off by "
                    f"{100 * median:.1f}% (median) and {100 * largest:.1f}% (most)"
                )
        return lines


def _median(errors: Sequence[float]) -> float | None:
    return statistics.median(map(abs, errors)) if errors else None


def _most(errors: Sequence[float]) -> float | None:
    return max(map(abs, errors)) if errors else None


def compared(expectations: Expectations, records: Sequence[Record]) -> Comparison:
    """Hold the estimates of a run against its probes."""
    residual, speed = expectations.residual(records), expectations.speed(records)
    errors, speed_errors = [], []
    for estimate, measurement in expectations.pairs(records):
        if measurement.peak_memory_bytes:
            corrected = residual.corrected(estimate.own_reserved_bytes)
            process_bytes = measurement.peak_memory_bytes - (measurement.vllm_bytes or 0)
            errors.append(corrected / process_bytes - 1)
        if estimate.time_parts is not None and measurement.step_time_s:
            speed_errors.append(speed.time_s(estimate.time_parts) / measurement.step_time_s - 1)
    return Comparison(
        residual=residual,
        memory_errors=tuple(errors),
        speed=speed,
        speed_errors=tuple(speed_errors),
    )
