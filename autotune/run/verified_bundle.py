"""The bundle of a recommendation: written, launched, and the next one taken where it fails."""

import functools
import sys

from autotune.bundle.bundle import bundle_files, found_by
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.run.loop import probe_again
from autotune.run.room import has_time_to_verify
from autotune.run.session import Session
from autotune.run.verdict import Verification
from autotune.run.verify import verify
from autotune.search.recommend import NothingFits, Recommendation, recommend
from autotune.search.record import counts_as_probe
from autotune.space.bind import SearchSpace

MAX_VERIFICATIONS = 3


def emitted(session: Session, first: Recommendation) -> tuple[Recommendation, Verification | None]:
    """Return what is recommended in the end, its bundle written; launched too, unless told not to,
    or the total budget has no time for that."""
    if session.options.verify and has_time_to_verify(session, first):
        return verified(session, first)
    emit_session(session, first, None)
    return first, None


def verified(session: Session, first: Recommendation) -> tuple[Recommendation, Verification]:
    """Return the first recommendation whose bundle passes; where none does, the very first one.

    A launch that is off may make the candidate be probed again: that probe is one of the run, and
    where another candidate is the fastest by it, that one is next.
    """
    judged: list[tuple[Recommendation, Verification]] = []
    passed_over: dict[int, str] = {}
    following: Recommendation | NothingFits = first
    while isinstance(following, Recommendation) and len(judged) < MAX_VERIFICATIONS:
        if judged and not has_time_to_verify(session, following):
            break
        emit_session(session, following, None)
        session.listener.verifying(following)
        again = functools.partial(probe_again, session, following.chosen.candidate)
        outcome = verify(
            session.run,
            session.job,
            session.facts,
            following.chosen,
            session.server,
            again,
            session.deadline,
            session.listener.verification_stage,
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
        if outcome.was_disturbed:  # so would be the next
            break
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
    """Return the files of a bundle that is launched with this very interpreter."""
    return bundle_files(
        recommendation,
        job,
        facts,
        python=sys.executable,
        output_dir=run.bundle_output,
        origin=found_by(probes, len(space.candidates), facts.device.name),
        recipe_knobs=[knob.name for knob in space.free_knobs if knob.kind == "recipe"],
        verification=verification.plain() if verification is not None else None,
    )
