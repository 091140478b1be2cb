"""What of a run is sent: the job in short, each probe with what was expected of it, the result."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from autotune import __version__
from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.probe.protocol import Measurement
from autotune.process.run_folder import RunFolder
from autotune.run.past_run import PastRun
from autotune.search.recommend import Ranked
from autotune.search.record import Record
from autotune.trackers.tracker import PROBE, RESULT, Entry, TrackedRun

STATES = {"ok": "finished", "stopped": "finished", "busy": "killed", "interrupted": "killed"}
"""How the run of a probe ends; that of any other outcome failed. A stopped one could not win."""
MEASURED = ("tokens_per_s", "step_time_s", "peak_memory_bytes")
_SHOWN = (*MEASURED, "relative_uncertainty", "missing_bytes", "seconds")
UNKNOWN = "cut_short"
"""The outcome of a run that was killed."""


def tracked_run(job: Job, facts: Facts, run: RunFolder) -> TrackedRun:
    """Return what a tracker is told of a run as it begins."""
    data = job.dataset if isinstance(job.dataset, str) else "lengths"
    return TrackedRun(
        id=str(run.read(run.run)["study"]),
        name=run.path.name,
        folder=str(run.tracking),
        config={
            "model": job.model,
            "parameters": facts.model.parameters,
            "dataset": data,
            "rows": facts.data.rows,
            "method": job.method,
            "tuning": job.tuning,
            "global_batch_size": job.global_batch_size,
            "max_length": job.max_length,
            "device": facts.device.name,
            "devices": job.devices.total,
        },
        labels=[job.method, job.tuning, facts.device.name, f"autotune {__version__}"],
    )


def probe_entry(run: TrackedRun, record: Record, estimate: Estimate | None) -> Entry:
    """Return a probe that has ended."""
    measurement = record.measurement
    assert measurement is not None
    return Entry(
        key=f"probe-{record.number:04d}",
        kind=PROBE,
        name=f"{run.name} probe {record.number}",
        config={**run.config, **record.candidate.knobs},
        metrics={**_measured(measurement), **_estimated(measurement, estimate)},
        outcome=measurement.outcome,
        reason=measurement.reason,
        state=STATES.get(measurement.outcome, "failed"),
    )


def entries(run: TrackedRun, past: PastRun) -> Iterator[Entry]:
    """Yield all of a run: its probes that have ended, in order, then what it came to."""
    estimates = past.expectations.estimates if past.expectations else {}
    for record in past.records:
        if record.measurement is not None:
            yield probe_entry(run, record, estimates.get(record.candidate.key))
    yield _result(run, past)


def _result(run: TrackedRun, past: PastRun) -> Entry:
    outcome = past.ending.outcome if past.ending else UNKNOWN
    knobs: Mapping[str, Any] = {}
    metrics: dict[str, float] = {}
    bundle = None
    if (chosen := _chosen(past)) is not None:
        knobs, bundle = chosen.candidate.knobs, str(past.run.bundle)
        metrics = {**_measured(chosen.measurement), "probe": float(chosen.number)}
    verification = past.stored.verification if past.stored and chosen else None
    if verification is not None:
        metrics |= _finite(
            verified=float(verification.verified),
            verified_speed_against_promise=verification.speed_against_promise,
            verified_peak_memory_bytes=verification.peak_memory_bytes,
        )
    saving = past.ending.saving if past.ending else None
    if saving is not None:
        metrics |= _finite(job_s=saving.job_s, default_job_s=saving.default_s)
    return Entry(
        key="result",
        kind=RESULT,
        name=run.name,
        config={**run.config, **knobs},
        metrics={**metrics, "probes": float(len(past.records))},
        outcome=outcome,
        reason=past.ending.stop_reason if past.ending else "the run was killed",
        state={"recommended": "finished", "interrupted": "killed"}.get(outcome, "failed"),
        bundle=bundle,
    )


def _chosen(past: PastRun) -> Ranked | None:
    """Return what is recommended; None where that is nothing, or what was is not stable after
    all."""
    if past.stored is None:
        return None
    with contextlib.suppress(UserError):
        return past.recommendation(past.stored.probe).chosen
    return None


def _measured(measurement: Measurement) -> dict[str, float]:
    return _finite(**{name: getattr(measurement, name) for name in _SHOWN})


def _estimated(measurement: Measurement, estimate: Estimate | None) -> dict[str, float]:
    """Return what was expected before any probe, and its error: estimated over measured, less 1."""
    if estimate is None:
        return {}
    expected = _finite(**{f"estimated_{name}": getattr(estimate, name) for name in MEASURED})
    measured = _measured(measurement) if measurement.outcome == "ok" else {}
    errors = {
        f"{name}_estimate_error": expected[f"estimated_{name}"] / measured[name] - 1
        for name in MEASURED
        if measured.get(name) and f"estimated_{name}" in expected
    }
    return {**expected, **errors}


def _finite(**figures: float | None) -> dict[str, float]:
    """Return the figures that are known, as numbers."""
    return {
        name: float(value)
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    }
