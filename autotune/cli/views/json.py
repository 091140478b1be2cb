"""Results as JSON data, with the schema's version in them. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.probe.protocol import Measurement
from autotune.report.plan_answer import advice_plain
from autotune.run.expectations import Expectations, compared
from autotune.run.session import Result
from autotune.search.record import Record, counts_as_probe
from autotune.search.repeats import repeatability
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate

SCHEMA = 1


def result_plain(result: Result, bundle: Path) -> dict[str, Any]:
    """Return what `autotune run --json` prints."""
    chosen = result.recommendation.chosen if result.recommendation else None
    verification = result.verification
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "outcome": result.outcome,
        "knobs": chosen.candidate.knobs if chosen else None,
        "measurement": asdict(chosen.measurement) if chosen else None,
        "probe": chosen.number if chosen else None,
        "reasons": list(result.recommendation.reasons) if result.recommendation else [],
        "verified": bool(verification and verification.verified),
        "verification": verification.plain() if verification else None,
        "bundle": str(bundle) if result.outcome == "recommended" else None,
        "probes": probe_counts(result.records),
        "space_size": result.space_size,
        "stop_reason": result.stop_reason,
        "saving": None if result.saving is None else asdict(result.saving),
        "repeatability": asdict(repeatability(result.records)),
        "skipped": dict(Counter(result.skipped.values())),
        "unprobed": [asdict(value) for value in result.unprobed],
        "left_out": list(result.left_out),
        "seconds": result.seconds,
    }
    if result.nothing_measured is not None:
        plain["nothing_measured"] = asdict(result.nothing_measured)
    if result.nothing_fits is not None:
        nearest = result.nothing_fits.nearest
        plain["nothing_fits"] = {
            "why": result.nothing_fits.why,
            "nearest": record_plain(nearest) if nearest else None,
            "short_bytes": result.nothing_fits.short_bytes,
            "short_is_lower_bound": result.nothing_fits.short_is_lower_bound,
            "tried": [
                {
                    "change": change.text,
                    "kind": change.kind,
                    "fits": change.fits,
                    "measurement": asdict(change.measurement),
                }
                for change in result.tried
            ],
            "advice": None if result.advice is None else advice_plain(result.advice),
        }
    return plain


def probe_counts(records: tuple[Record, ...]) -> dict[str, int]:
    """Return how many probes there were, and how they ended."""
    outcomes = [r.measurement.outcome for r in records if r.measurement and counts_as_probe(r)]
    ok, oom = outcomes.count("ok"), outcomes.count("oom") + outcomes.count("host_oom")
    return {"total": len(outcomes), "ok": ok, "oom": oom, "other": len(outcomes) - ok - oom}


def record_plain(record: Record, estimate: Estimate | None = None) -> dict[str, Any]:
    """Return one probe, and what was expected of it."""
    return {
        "estimate": None if estimate is None else estimate.plain(),
        "probe": record.number,
        "knobs": record.candidate.knobs,
        "measurement": asdict(record.measurement) if record.measurement else None,
    }


def report_plain(
    records: list[Record],
    recommendation: Any | None,
    expectations: Expectations | None,
    skipped: Mapping[str, str],
) -> dict[str, Any]:
    """Return what `autotune report --json` prints: every probe, and the stored recommendation."""
    estimates = {} if expectations is None else expectations.estimates
    comparison = None if expectations is None else compared(expectations, records).plain()
    return {
        "schema": SCHEMA,
        "probes": [record_plain(record, estimates.get(record.candidate.key)) for record in records],
        "estimates": comparison,
        "counts": probe_counts(tuple(records)),
        "repeatability": asdict(repeatability(records)),
        "skipped": dict(Counter(skipped.values())),
        "recommendation": recommendation,
    }


def probe_plain(candidate: Candidate, measurement: Measurement) -> dict[str, Any]:
    """Return what `autotune probe --json` prints."""
    return {"schema": SCHEMA, "knobs": candidate.knobs, "measurement": asdict(measurement)}


def space_plain(space: SearchSpace, facts: Facts) -> dict[str, Any]:
    """Return what `autotune validate --space --json` prints of the space."""
    return {
        "schema": SCHEMA,
        "candidates": len(space.candidates),
        "knobs": [asdict(knob) for knob in space.knobs],
        "excluded": [asdict(exclusion) for exclusion in space.exclusions],
        "notes": list(space.notes),
        "device": facts.device.name,
    }
