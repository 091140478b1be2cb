"""Several probes of one candidate as one measurement, and how well probes repeat. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.probe.protocol import Measurement
from autotune.search.record import Record

PRIOR_SD, PRIOR_WORTH = 0.02, 4.0
"""Assumed before any repeat: two probes of one candidate differ by 2%, worth four repeats."""
SD_95 = 1.96
_TIMES = (
    "step_time_s",
    "micro_step_time_s",
    "micro_step_fixed_s",
    "micro_step_per_token_s",
    "optimizer_step_time_s",
    "data_wait_s",
    "generation_s",
    "scoring_s",
    "update_s",
)


_PEAKS = ("generation_peak_bytes", "scoring_peak_bytes", "update_peak_bytes")


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """The spread of probes of the same candidate.

    Attributes:
        sd: relative standard deviation of one probe; before any repeat what is assumed.
        measured_sd: of the repeats alone; None where there are none.
        repeats: how many probes there were beyond the first of each candidate.
    """

    sd: float
    measured_sd: float | None
    repeats: int


def repeatability(records: Iterable[Record]) -> Repeatability:
    """Return how well speeds repeat, from every candidate that ended ok more than once."""
    by_candidate = defaultdict(list)
    for record in records:
        measurement = record.measurement
        if measurement is not None and measurement.outcome == "ok" and measurement.tokens_per_s:
            by_candidate[record.candidate.key].append(measurement)
    readings = {
        key: [math.log(measurement.tokens_per_s or 1.0) for measurement in measurements]
        for key, measurements in by_candidate.items()
    }
    squares = sum(
        (log - fmean(logs)) ** 2 for logs in readings.values() if len(logs) > 1 for log in logs
    )
    repeats = sum(len(logs) - 1 for logs in readings.values())
    pooled_sd = math.sqrt((squares + PRIOR_WORTH * PRIOR_SD**2) / (repeats + PRIOR_WORTH))
    return Repeatability(
        sd=pooled_sd,
        measured_sd=math.sqrt(squares / repeats) if repeats else None,
        repeats=repeats,
    )


def error(measurement: Measurement, sd: float) -> float:
    """Return the relative standard error of one probe's speed: its own interval, and the spread of
    probes."""
    return math.hypot(sd, (measurement.relative_uncertainty or 0.0) / SD_95)


def pooled(measurements: Sequence[Measurement], sd: float) -> Measurement:
    """Return one candidate's probes that ended ok, as one: the mean speed, the highest peak.

    Each counts by its error. The uncertainty of several is that of their mean, by their errors or
    by how far they are apart, whatever is more; a single one keeps its own. Times are those of the
    first, scaled to the mean.
    """
    first = measurements[0]
    if len(measurements) == 1:
        return first
    readings = [measurement for measurement in measurements if measurement.tokens_per_s]
    logs = [math.log(reading.tokens_per_s or 1.0) for reading in readings]
    weights = [1 / error(reading, sd) ** 2 for reading in readings]
    centre = fmean(logs, weights)
    variance = fmean([(log - centre) ** 2 for log in logs], weights) / max(len(logs) - 1, 1)
    mean = math.exp(centre)
    slower = (first.tokens_per_s or mean) / mean
    times = {name: slower * value for name in _TIMES if (value := getattr(first, name)) is not None}
    retries = [m.allocator_retries for m in measurements if m.allocator_retries is not None]
    peaks = [m.peak_memory_bytes for m in measurements if m.peak_memory_bytes is not None]
    phases = {
        name: max(phase_peaks)
        for name in _PEAKS
        if (phase_peaks := [p for m in measurements if (p := getattr(m, name)) is not None])
    }
    return replace(
        first,
        **times,
        **phases,
        reason=f"{len(measurements)} probes; {first.reason}",
        tokens_per_s=mean,
        completions_per_s=first.completions_per_s and first.completions_per_s / slower,
        relative_uncertainty=SD_95 * math.sqrt(max(1 / sum(weights), variance)),
        peak_memory_bytes=max(peaks, default=None),
        allocator_retries=max(retries, default=None),
    )
