"""How a search is concluded: recommend, emit, verify; or say what would make the job fit."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from autotune.errors import UserError
from autotune.job.job import Job
from autotune.plan.questions.advice import advise_in_run
from autotune.plan.questions.changes import TriedChange, offloading, single_changes
from autotune.plan.questions.way import Advice
from autotune.probe.measure import measure_candidate
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder
from autotune.run.deadline import OutOfTime
from autotune.run.left_out import left_out
from autotune.run.loop import ruled_out
from autotune.run.nothing_measured import nothing_measured, too_busy
from autotune.run.recipe_values import unprobed_values
from autotune.run.room import job_seconds, probing_s
from autotune.run.session import Result, SearchSession, Session, follow_probe
from autotune.run.verified_bundle import emitted
from autotune.search.job_time import Saving
from autotune.search.recommend import NothingFits, Recommendation, recommend
from autotune.search.record import Record, counts_as_probe, excess_bytes
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate

UNTRIED = "changes that might make it fit: `autotune advise` estimates them"


def conclude(session: Session, reason: str) -> Result:
    """Return what the run comes to, once the search has stopped for `reason`."""
    first = recommend(session.study.records(), session.allowed_bytes)
    if isinstance(first, NothingFits):
        return without_recommendation(session, first, reason)
    recommendation, verification = emitted(session, first)
    records = session.study.records()
    return dataclasses.replace(
        searched_result(session, "recommended", reason),
        space=session.space,
        devices=session.job.devices.total,
        recommendation=recommendation,
        verification=verification,
        saving=saving(session, recommendation, records),
        left_out=tuple(left_out(session, records, recommendation, verification)),
    )


def without_recommendation(session: Session, first: NothingFits, reason: str) -> Result:
    """Return what the run comes to that has no stable candidate: nothing fits, or nobody knows."""
    unknown = unknown_result(session, reason)
    if unknown is not None:
        return unknown
    first = measured_shortfall(session, first)
    tried_changes = tuple(try_changes(session, first))
    return dataclasses.replace(
        searched_result(session, "nothing_fits", reason),
        nothing_fits=first,
        tried=tried_changes,
        advice=advice_of(session, first, tried_changes),
        left_out=(UNTRIED,) if session.deadline.left_s <= 0 else (),
    )


def unknown_result(session: SearchSession, reason: str) -> Result | None:
    """Return what a search comes to that leaves open whether anything fits; None: it does not."""
    records = session.study.records()
    for outcome, problem in (
        ("nothing_stable", too_busy(session.run, records)),
        ("nothing_measured", nothing_measured(session, records, reason)),
    ):
        if problem is not None:
            result = searched_result(session, outcome, reason)
            return dataclasses.replace(result, nothing_measured=problem)
    return None


def searched_result(session: SearchSession, outcome: str, reason: str) -> Result:
    """Return what every search comes to that ended for `reason`."""
    records = tuple(session.study.records())
    skipped = ruled_out(session, records)
    return Result(
        outcome=outcome,
        records=records,
        stop_reason=reason,
        space_size=len(session.space.candidates),
        skipped=skipped,
        unprobed=unprobed_values(
            session.job,
            session.space,
            records,
            skipped,
            session.expectations,
            session.limit_bytes,
            otherwise=reason,
        ),
    )


def saving(
    session: Session, recommendation: Recommendation, records: Sequence[Record]
) -> Saving | None:
    """Return what the search brought against the stack's defaults.

    None where that is not known: the defaults do not run here, or the recipe varies, so that jobs
    are not the same work.
    """
    default, winner = session.space.default(), recommendation.chosen
    if any(knob.kind == "recipe" for knob in session.space.free_knobs):
        return None
    ranked = (winner, *recommendation.ties, *recommendation.runners_up)
    default_ranked = next(
        (ranked_probe for ranked_probe in ranked if ranked_probe.candidate.key == default.key), None
    )
    default_probed = any(r.candidate.key == default.key and counts_as_probe(r) for r in records)
    out = default_probed or default.key in ruled_out(session, records)
    speed = session.study.expected_values().get(default.key) if not out else None
    speed = default_ranked.tokens_per_s if default_ranked is not None else speed
    job_s = job_seconds(session, winner)
    if job_s is None or speed is None:
        return None
    return Saving(
        probing_s=probing_s(records),
        job_s=job_s,
        default_s=job_s * winner.tokens_per_s / speed,
        measured=default_ranked is not None,
    )


def advice_of(
    session: Session, nothing: NothingFits, tried: Sequence[TriedChange]
) -> Advice | None:
    """Return what would make the job fit, by estimate; None where memory was not what it lacked, or
    a single change was found to do."""
    if nothing.nearest is None or any(change.fits for change in tried):
        return None
    session.listener.trying("more than one change, by estimate")
    with contextlib.suppress(OutOfTime), session.deadline.cuts():
        return advise_in_run(
            session.job,
            session.facts,
            session.allowed_bytes,
            session.space,
            session.run,
            session.server,
            [change.text for change in tried if change.measurement.outcome != "unsupported"],
        )
    return None


def measured_shortfall(session: Session, nothing: NothingFits) -> NothingFits:
    """Return where the device has more than the job allows, what the nearest candidate really
    takes."""
    roomy = session.facts.device.free_bytes
    if nothing.nearest is None or not nothing.short_is_lower_bound or roomy <= session.limit_bytes:
        return nothing
    session.listener.trying("the nearest candidate without the job's memory limit")
    measurement = _what_if(session, session.job, nothing.nearest.candidate, "unlimited", roomy)
    if measurement.outcome != "ok" or measurement.peak_memory_bytes is None:
        return nothing
    return dataclasses.replace(
        nothing,
        short_bytes=measurement.peak_memory_bytes - session.allowed_bytes,
        short_is_lower_bound=False,
    )


def _what_if(
    session: Session, job: Job, candidate: Candidate, name: str, limit: int
) -> Measurement:
    """Return a probe beside the search: it is not part of the study."""
    return measure_candidate(
        session.server,
        ChildFolder(path=session.run.what_if / name),
        job,
        session.facts,
        candidate,
        rows=session.run.rows,
        output_dir=session.run.output,
        limit=limit,
        watch=follow_probe(session.listener),
        most_s=session.deadline.left_s,
        timed=False,
    )


def try_changes(session: Session, nothing: NothingFits) -> Iterator[TriedChange]:
    """Probe the single changes of the job that might make it fit."""
    if nothing.nearest is None:
        return
    nearest = nothing.nearest.candidate
    away = offloading(session.job, session.facts.device.kind)
    for index, change in enumerate([*away, *single_changes(session.job, nearest)]):
        try:
            definition = load_definition(change.job.method, change.job.search_space)
            space = bind(definition, change.job, session.facts)
        except UserError:
            continue
        if session.deadline.left_s <= 0:
            return
        session.listener.trying(change.text)
        candidate = space.nearest(nearest.values)
        measurement = _what_if(session, change.job, candidate, f"{index:02d}", session.limit_bytes)
        if measurement.outcome == "interrupted":
            return
        excess = excess_bytes(measurement, session.allowed_bytes)
        yield TriedChange(
            text=change.text,
            kind=change.kind,
            fits=measurement.outcome == "ok" and (excess or 0) <= 0,
            measurement=measurement,
        )


def interrupted(session: SearchSession | None) -> Result:
    """Return what is known when the run is ended from outside; None: before its search began."""
    if session is None:
        return Result(
            outcome="interrupted",
            records=(),
            stop_reason="interrupted before the search",
            space_size=0,
        )
    records = tuple(session.study.records())
    best = recommend(records, session.allowed_bytes)
    return Result(
        outcome="interrupted",
        records=records,
        stop_reason="interrupted",
        space_size=len(session.space.candidates),
        space=session.space,
        devices=session.job.devices.total,
        recommendation=best if isinstance(best, Recommendation) else None,
    )
