"""How a search is concluded: recommend, write, launch; or say why nothing is recommended."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from autotune.run.loop import (
    has_time_to_verify,
    job_seconds,
    probe_again,
    probing_s,
    room,
    ruled_out,
    too_close,
)
from autotune.run.nothing_measured import nothing_measured, too_busy
from autotune.run.recipe_values import unprobed_values
from autotune.run.session import Result, Session
from autotune.run.verdict import Verification
from autotune.search.job_time import Saving
from autotune.search.recommend import NothingFits, Recommendation, recommend
from autotune.search.record import Record, counts_as_probe
from autotune.units import format_seconds


def conclude(session: Session, reason: str) -> Result:
    """Return the result of a run whose search has stopped for `reason`."""
    first = recommend(session.study.records(), session.allowed_bytes)
    if isinstance(first, NothingFits):
        return without_recommendation(session, first, reason)
    recommendation, verification = emitted(session, first)
    records = session.study.records()
    return dataclasses.replace(
        searched_result(session, "recommended", reason),
        space=session.space,
        devices=session.devices,
        recommendation=recommendation,
        verification=verification,
        saving=saving(session, recommendation, records),
        left_out=tuple(left_out(session, records, recommendation, verification)),
    )


def without_recommendation(session: Session, first: NothingFits, reason: str) -> Result:
    """Return the result of a run without a stable candidate: nothing fits, or it is not known
    whether anything does."""
    records = session.study.records()
    for outcome, problem in (
        ("nothing_stable", too_busy(session, records, reason)),
        ("nothing_measured", nothing_measured(session, records, reason)),
    ):
        if problem is not None:
            result = searched_result(session, outcome, reason)
            return dataclasses.replace(result, nothing_measured=problem)
    return session.with_remedies(searched_result(session, "nothing_fits", reason), first)


def interrupted(session: Session | None) -> Result:
    """Return the result of a run that is ended from outside; None: before its search began."""
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
        devices=session.devices,
        recommendation=best if isinstance(best, Recommendation) else None,
    )


def searched_result(session: Session, outcome: str, reason: str) -> Result:
    """Return the common part of the result of a search that ended for `reason`."""
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
    """Return the gain of the search over the default candidate.

    None where that is not known: the default does not run here, or the recipe varies, so that jobs
    are not the same work.
    """
    default, winner = session.space.default(), recommendation.chosen
    if any(knob.kind == "recipe" for knob in session.space.free_knobs):
        return None
    ranked = (winner, *recommendation.ties, *recommendation.runners_up)
    measured = next((r for r in ranked if r.candidate.key == default.key), None)
    speed = measured.tokens_per_s if measured else _expected_speed(session, default.key, records)
    job_s = job_seconds(session, winner)
    if job_s is None or speed is None:
        return None
    return Saving(
        probing_s=probing_s(records),
        job_s=job_s,
        default_s=job_s * winner.tokens_per_s / speed,
        measured=measured is not None,
        default=session.default_words,
    )


def _expected_speed(session: Session, key: str, records: Sequence[Record]) -> float | None:
    """Return the speed of a candidate that was not measured; None where it was probed, and failed,
    or was ruled out, or nothing was estimated."""
    probed = any(r.candidate.key == key and counts_as_probe(r) for r in records)
    if probed or not session.expectations.estimates or key in ruled_out(session, records):
        return None
    return session.study.expected_values().get(key)


def left_out(
    session: Session,
    records: Sequence[Record],
    recommendation: Recommendation,
    verification: Verification | None,
) -> Iterator[str]:
    """Yield what a run with a recommendation had no room for in its budget, as sentences."""
    if session.expectations.cut:
        yield f"traces: they took more than their part of {session.deadline.words}"
    group = too_close(session, records)
    if group and room(session, records) < len(group):
        numbers = ", ".join(str(ranked.number) for ranked in group)
        yield f"measuring the fastest again: probes {numbers} are too close to call"
    if verification is None and session.options.verify:
        needed_s, left_s = session.verification_s(recommendation.chosen), session.deadline.left_s
        yield (
            f"verification: it takes about {format_seconds(needed_s)}, and {session.deadline.words}"
            f" has {format_seconds(max(left_s, 0.0))} left; `{session.launching}` launches it"
        )


# -- written and launched


def emitted(session: Session, first: Recommendation) -> tuple[Recommendation, Verification | None]:
    """Return what is recommended in the end, and written; launched too, unless told not to, or the
    total budget has no time for that."""
    if session.options.verify and has_time_to_verify(session, first):
        return verified(session, first)
    session.write(first, None)
    return first, None


def verified(session: Session, first: Recommendation) -> tuple[Recommendation, Verification]:
    """Return the first recommendation whose launch passes; where none does, the very first one.

    A launch that is off may make the candidate be probed again: that probe is one of the run, and
    where another candidate is the fastest by it, that one is next.
    """
    judged: list[tuple[Recommendation, Verification]] = []
    passed_over: dict[int, str] = {}
    following: Recommendation | NothingFits = first
    while isinstance(following, Recommendation) and len(judged) < session.most_launches:
        if judged and not has_time_to_verify(session, following):
            break
        session.write(following, None)
        session.listener.verifying(following)
        again = functools.partial(probe_again, session, following.chosen.candidate)
        outcome, noise = session.launch(following.chosen, again), following.noise
        if noise is None and session.options.accept_noise and outcome.was_disturbed:
            noise = outcome.processor_wait_share
        outcome = outcome.among_noise(noise)
        session.listener.verified(outcome)
        if outcome.holds:
            now = recommend(session.study.records(), session.allowed_bytes, passed_over)
            is_same = isinstance(now, Recommendation) and (
                now.chosen.candidate.key == following.chosen.candidate.key
            )
            last = len(judged) + 1 == session.most_launches or isinstance(now, NothingFits)
            if is_same or last:
                following = now if is_same and isinstance(now, Recommendation) else following
                session.write(following, outcome)
                return following, outcome
            judged.append((following, outcome))
            following = now
            continue
        judged.append((following, outcome))
        if outcome.was_disturbed:  # so would be the next
            break
        passed_over[following.chosen.number] = outcome.reason
        following = recommend(session.study.records(), session.allowed_bytes, passed_over)
    best = next((pair for pair in judged if pair[1].holds), judged[0])
    session.write(*best)
    return best
