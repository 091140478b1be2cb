"""Several probes of one candidate as one measurement, and how well probes repeat. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.probe.protocol import Measurement
from autotune.probe.record import Record

PRIOR_SD, PRIOR_WORTH = 0.02, 4.0
"""Before any repeat: two probes of one candidate differ by 2%, worth four repeats."""
SD_95 = 1.96
_TIMES = (
    "step_time_s",
    "micro_step_time_s",
    "micro_step_fixed_s",
    "micro_step_per_token_s",
    "optimizer_step_time_s",
    "data_wait_s",
)


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """How far probes of the same candidate are apart.

    Attributes:
        sd: relative standard deviation of one probe; before any repeat what is assumed.
        measured_sd: of the repeats alone; None where there are none.
        repeats: how many probes there were beyond the first of each candidate.
    """

    sd: float
    measured_sd: float | None
    repeats: int


def repeatability(records: Iterable[Record]) -> Repeatability:
    """From every candidate that ended ok more than once."""
    readings = defaultdict(list)
    for record in records:
        measurement = record.measurement
        if measurement is not None and measurement.outcome == "ok" and measurement.tokens_per_s:
            readings[record.candidate.key].append(math.log(measurement.tokens_per_s))
    squares = sum(
        (one - fmean(logs)) ** 2 for logs in readings.values() if len(logs) > 1 for one in logs
    )
    repeats = sum(len(logs) - 1 for logs in readings.values())
    pooled_sd = math.sqrt((squares + PRIOR_WORTH * PRIOR_SD**2) / (repeats + PRIOR_WORTH))
    return Repeatability(
        sd=pooled_sd,
        measured_sd=math.sqrt(squares / repeats) if repeats else None,
        repeats=repeats,
    )


def pooled(measurements: Sequence[Measurement], sd: float) -> Measurement:
    """One candidate's probes that ended ok, as one: the mean speed, the highest peak.

    Times are those of the first, scaled to the mean. The uncertainty of several is what `sd` (of
    one probe against another) leaves of their mean; a single one keeps its own.
    """
    first = measurements[0]
    if len(measurements) == 1:
        return first
    speeds = [one.tokens_per_s for one in measurements if one.tokens_per_s]
    mean = math.exp(fmean(map(math.log, speeds)))
    slower = (first.tokens_per_s or mean) / mean
    times = {name: slower * value for name in _TIMES if (value := getattr(first, name)) is not None}
    retries = [one.allocator_retries for one in measurements if one.allocator_retries is not None]
    peaks = [one.peak_memory_bytes for one in measurements if one.peak_memory_bytes is not None]
    return replace(
        first,
        **times,
        reason=f"{len(measurements)} probes; {first.reason}",
        tokens_per_s=mean,
        relative_uncertainty=SD_95 * sd / math.sqrt(len(speeds)),
        peak_memory_bytes=max(peaks, default=None),
        allocator_retries=max(retries, default=None),
    )
