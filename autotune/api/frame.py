"""Candidates and probes as rows of a frame; units are in the names of the columns."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import is_safe
from autotune.search.recommend import Ranked
from autotune.search.record import Record
from autotune.space.knobs import Candidate

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a frame, in their order."""
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])


def plan_row(candidate: Candidate, estimate: Estimate) -> dict[str, Any]:
    """Return the estimate of a candidate."""
    return {
        **candidate.knobs,
        "tokens_per_s": estimate.tokens_per_s,
        "step_time_s": estimate.step_time_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "p_oom": round(estimate.p_oom, 4),
        "fits": estimate.fits,
        "safe": is_safe(estimate),
        "method": estimate.method,
    }


def ranked_row(ranked: Ranked) -> dict[str, Any]:
    """Return the measurement of a candidate over all its probes."""
    return {
        **ranked.candidate.knobs,
        "tokens_per_s": ranked.tokens_per_s,
        "relative_uncertainty": ranked.measurement.relative_uncertainty,
        "step_time_s": ranked.measurement.step_time_s,
        "peak_memory_bytes": ranked.measurement.peak_memory_bytes,
        "probes": ranked.readings,
    }


def probe_row(record: Record) -> dict[str, Any]:
    """Return the measurement of a probe; a probe that was cut short has an outcome of None."""
    measured = record.measurement
    return {
        "probe": record.number,
        **record.candidate.knobs,
        "outcome": measured and measured.outcome,
        "tokens_per_s": measured and measured.tokens_per_s,
        "step_time_s": measured and measured.step_time_s,
        "peak_memory_bytes": measured and measured.peak_memory_bytes,
        "seconds": measured and measured.seconds,
        "reason": measured and measured.reason,
    }
