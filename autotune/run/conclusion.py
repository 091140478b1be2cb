"""How a search is concluded: recommend, emit, verify; or say what would make the job fit."""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence

from autotune.bundle.bundle import bundle_files
from autotune.errors import UserError
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.questions.advice import advise_in_run
from autotune.plan.questions.changes import TriedChange, offloading, single_changes
from autotune.plan.questions.ways import Advice
from autotune.probe.measure import measure_candidate
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder
from autotune.process.run_folder import RunFolder
from autotune.run.loop import job_seconds, probe_again, probing_s, ruled_out
from autotune.run.session import Result, Session
from autotune.run.verdict import Verification
from autotune.run.verify import verify
from autotune.search.job_time import Saving
from autotune.search.recommend import NothingFits, Recommendation, recommend
from autotune.search.record import Record, counts_as_probe, excess_bytes
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import load_definition
from autotune.space.knobs import Candidate

MAX_VERIFICATIONS = 3


def conclude(session: Session, reason: str) -> Result:
    """What the run comes to, once the search has stopped for `reason`."""
    records = tuple(session.study.records())
    size = len(session.space.candidates)
    first = recommend(records, session.allowed_bytes)
    if isinstance(first, NothingFits):
        first = measured_shortfall(session, first)
        tried_changes = tuple(try_changes(session, first))
        return Result(
            outcome="nothing_fits",
            records=records,
            stop_reason=reason,
            space_size=size,
            nothing_fits=first,
            tried=tried_changes,
            advice=advice_of(session, first, tried_changes),
            skipped=ruled_out(session, records),
        )
    recommendation, verification = emitted(session, first)
    records = tuple(session.study.records())
    return Result(
        outcome="recommended",
        records=records,
        stop_reason=reason,
        space_size=size,
        space=session.space,
        devices=session.job.devices.total,
        recommendation=recommendation,
        verification=verification,
        saving=saving(session, recommendation, records),
        skipped=ruled_out(session, records),
    )


def saving(
    session: Session, recommendation: Recommendation, records: Sequence[Record]
) -> Saving | None:
    """What the search brought against the stack's defaults.

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


def emitted(session: Session, first: Recommendation) -> tuple[Recommendation, Verification | None]:
    """What is recommended in the end, its bundle written; launched too, unless told not to."""
    if session.options.verify:
        return verified(session, first)
    emit_session(session, first, None)
    return first, None


def verified(session: Session, first: Recommendation) -> tuple[Recommendation, Verification]:
    """The first recommendation whose bundle passes; where none does, the very first one.

    A launch that is off may make the candidate be probed again: that probe is one of the run, and
    where another candidate is the fastest by it, that one is next.
    """
    judged: list[tuple[Recommendation, Verification]] = []
    passed_over: dict[int, str] = {}
    following: Recommendation | NothingFits = first
    while isinstance(following, Recommendation) and len(judged) < MAX_VERIFICATIONS:
        emit_session(session, following, None)
        session.listener.verifying(following)
        again = functools.partial(probe_again, session, following.chosen.candidate)
        outcome = verify(
            session.run, session.job, session.facts, following.chosen, session.server, again
        )
        session.listener.verified(outcome)
        if outcome.verified:
            now = recommend(session.study.records(), session.allowed_bytes, passed_over)
            is_same = isinstance(now, Recommendation) and (
                now.chosen.candidate.key == following.chosen.candidate.key
            )
            last = len(judged) + 1 == MAX_VERIFICATIONS or isinstance(now, NothingFits)
            if is_same or last:
                following = now if is_same and isinstance(now, Recommendation) else following
                emit_session(session, following, outcome)
                return following, outcome
            judged.append((following, outcome))
            following = now
            continue
        judged.append((following, outcome))
        passed_over[following.chosen.number] = outcome.reason
        following = recommend(session.study.records(), session.allowed_bytes, passed_over)
    best = next((pair for pair in judged if pair[1].verified), judged[0])
    emit_session(session, *best)
    return best


def emit_session(
    session: Session, recommendation: Recommendation, verification: Verification | None
) -> None:
    """Write the bundle of a recommendation into the run folder."""
    files = render(
        recommendation,
        session.job,
        session.facts,
        session.run,
        space=session.space,
        probes=sum(counts_as_probe(record) for record in session.study.records()),
        verification=verification,
    )
    session.run.write_bundle(session.run.bundle, files)


def render(
    recommendation: Recommendation,
    job: Job,
    facts: Facts,
    run: RunFolder,
    *,
    space: SearchSpace,
    probes: int,
    verification: Verification | None,
) -> dict[str, str]:
    """The files of a bundle that is launched with this very interpreter."""
    return bundle_files(
        recommendation,
        job,
        facts,
        python=sys.executable,
        output_dir=str(run.output),
        space_size=len(space.candidates),
        recipe_knobs=[knob.name for knob in space.free_knobs if knob.kind == "recipe"],
        probes=probes,
        verification=verification.plain() if verification is not None else None,
    )


def advice_of(
    session: Session, nothing: NothingFits, tried: Sequence[TriedChange]
) -> Advice | None:
    """What would make the job fit, by estimate; None where memory was not what it lacked, or a
    single change was found to do."""
    if nothing.nearest is None or any(change.fits for change in tried):
        return None
    session.listener.trying("more than one change, by estimate")
    return advise_in_run(
        session.job,
        session.facts,
        session.allowed_bytes,
        session.space,
        session.run,
        session.server,
        [change.text for change in tried if change.measurement.outcome != "unsupported"],
    )


def measured_shortfall(session: Session, nothing: NothingFits) -> NothingFits:
    """Where the device has more than the job allows, what the nearest candidate really takes."""
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
    """A probe beside the search: it is not part of the study."""
    return measure_candidate(
        session.server,
        ChildFolder(path=session.run.what_if / name),
        job,
        session.facts,
        candidate,
        rows=session.run.rows,
        output_dir=session.run.output,
        limit=limit,
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
        session.listener.trying(change.text)
        candidate = space.nearest(nearest.values)
        measurement = _what_if(session, change.job, candidate, f"{index:02d}", session.limit_bytes)
        excess = excess_bytes(measurement, session.allowed_bytes)
        yield TriedChange(
            text=change.text,
            kind=change.kind,
            fits=measurement.outcome == "ok" and (excess or 0) <= 0,
            measurement=measurement,
        )


def interrupted(session: Session | None) -> Result:
    """What is known when the run is ended from outside; None: before its search began."""
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
