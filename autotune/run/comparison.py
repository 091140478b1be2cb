"""Estimates held against measurements: how far off they were, and how well they ranked. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.estimate.residual import Residual
from autotune.estimate.speed.calibration import Coefficients, rank_correlation, top_k_regret
from autotune.run.expectations import Expectations
from autotune.search.record import Record

TOP = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the probes say of the estimates.

    Attributes:
        residual: the correction of memory estimates, and its uncertainty.
        memory_errors: of each probe that was ok: corrected estimate over measurement, less 1.
        speed: the correction of step times, and its uncertainty.
        speed_errors: of each probe that was ok: corrected step time over measurement, less 1.
        rank_correlation: Spearman's, of estimated and measured tokens/s; None: fewer than three.
        top_regret: how much slower than the fastest measured is the best of those three that were
            estimated fastest; None: no more than three.
    """

    residual: Residual
    memory_errors: tuple[float, ...]
    speed: Coefficients
    speed_errors: tuple[float, ...]
    rank_correlation: float | None
    top_regret: float | None

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        has_speed = bool(self.speed_errors)
        return {
            "residual": asdict(self.residual),
            "memory_error_median": _median(self.memory_errors),
            "memory_error_max": _most(self.memory_errors),
            "speed_factors": self.speed.factors if has_speed else None,
            "speed_residual": self.speed.residual if has_speed else None,
            "speed_measurements": self.speed.measurements,
            "speed_error_median": _median(self.speed_errors),
            "speed_error_max": _most(self.speed_errors),
            "speed_rank_correlation": self.rank_correlation,
            f"speed_top_{TOP}_regret": self.top_regret,
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
        if self.rank_correlation is not None:
            line = (
                f"estimated and measured tokens/s of {len(self.speed_errors)} probes: "
                f"rank correlation {self.rank_correlation:.2f}"
            )
            if self.top_regret is not None:
                line += (
                    f"; the best of the {TOP} estimated fastest is {100 * self.top_regret:.1f}% "
                    "slower than the fastest"
                )
            lines.append(line)
        return lines


def _median(errors: Sequence[float]) -> float | None:
    return statistics.median(map(abs, errors)) if errors else None


def _most(errors: Sequence[float]) -> float | None:
    return max(map(abs, errors)) if errors else None


def compared(expectations: Expectations, records: Sequence[Record]) -> Comparison:
    """Hold the estimates of a run against its probes."""
    residual, speed = expectations.residual(records), expectations.speed(records)
    errors, speed_errors, expected_s, measured_s = [], [], [], []
    for estimate, measurement in expectations.pairs(records):
        if measurement.peak_memory_bytes:
            corrected = residual.corrected(estimate.own_reserved_bytes)
            process_bytes = measurement.peak_memory_bytes - (measurement.vllm_bytes or 0)
            errors.append(corrected / process_bytes - 1)
        if estimate.time_parts is not None and measurement.step_time_s:
            speed_errors.append(speed.time_s(estimate.time_parts) / measurement.step_time_s - 1)
        if measurement.tokens_per_s and estimate.tokens_per_s:
            expected_s.append(1 / estimate.tokens_per_s)
            measured_s.append(1 / measurement.tokens_per_s)
    enough = len(measured_s) >= TOP
    return Comparison(
        residual=residual,
        memory_errors=tuple(errors),
        speed=speed,
        speed_errors=tuple(speed_errors),
        rank_correlation=rank_correlation(expected_s, measured_s) if enough else None,
        top_regret=top_k_regret(expected_s, measured_s, TOP) if len(measured_s) > TOP else None,
    )
