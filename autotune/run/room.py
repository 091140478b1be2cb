"""What room the budget of a run leaves, and what its next probe promises."""

import math
import statistics
from collections.abc import Sequence

from autotune.run.session import SearchSession
from autotune.run.standing import Standing
from autotune.run.verify import MARGIN
from autotune.search.recommend import NothingFits, Ranked, Recommendation, recommend
from autotune.search.record import Record, counts_as_probe
from autotune.search.rules.stopping import Outlook
from autotune.units import format_seconds


def room(session: SearchSession, records: Sequence[Record]) -> float:
    """Return how many more probes the budget has room for, by what they took so far."""
    budget, cost_s = session.job.budget, probe_cost_s(records)
    minutes_s = max(60 * budget.minutes - probing_s(records), 0.0)
    total_s = max(session.deadline.left_s - reserved_s(session, records), 0.0)
    return min(
        budget.probes - sum(counts_as_probe(record) for record in records),
        math.ceil(minutes_s / cost_s) if cost_s else math.inf,
        total_s // cost_s if cost_s else math.inf if total_s else 0.0,
    )


def no_time(session: SearchSession, records: Sequence[Record]) -> str | None:
    """Return why the total budget has no room for another probe; None where it has."""
    left_s, kept_s = session.deadline.left_s, reserved_s(session, records)
    if left_s - kept_s > probe_cost_s(records):
        return None
    if left_s <= 0:
        return f"{session.deadline.words} is used up"
    text = f"{session.deadline.words} has {format_seconds(left_s)} left"
    return f"{text}, of which {format_seconds(kept_s)} are for the verification" if kept_s else text


def reserved_s(session: SearchSession, records: Sequence[Record]) -> float:
    """Return what of a total budget is kept for the verification. Seconds: 0 before there is
    something to verify, and where there is too little time for it anyway."""
    best = recommend(records, session.allowed_bytes)
    without = session.deadline.total_s is None or not session.options.verify
    if without or isinstance(best, NothingFits) or not has_time_to_verify(session, best):
        return 0.0
    return session.verification_s(best.chosen)


def has_time_to_verify(session: SearchSession, recommendation: Recommendation) -> bool:
    """True if a verification may end before the deadline."""
    needed_s = session.verification_s(recommendation.chosen) / MARGIN
    return session.deadline.left_s >= needed_s


def probe_cost_s(records: Sequence[Record]) -> float:
    """Return what a probe took, by the median of those so far; 0 before any."""
    seconds = [r.measurement.seconds for r in records if r.measurement and r.measurement.seconds]
    return statistics.median(seconds) if seconds else 0.0


def probing_s(records: Sequence[Record]) -> float:
    """Return seconds that all probes took."""
    return sum(r.measurement.seconds for r in records if r.measurement is not None)


def outlook(session: SearchSession, records: Sequence[Record]) -> Outlook | None:
    """Return what the next probe promises; None where nothing is expected of it."""
    gain = session.study.gain()
    best = recommend(records, session.allowed_bytes)
    if gain is None or isinstance(best, NothingFits):
        return None
    return Outlook(
        gain=gain,
        job_s=job_seconds(session, best.chosen),
        cost_s=probe_cost_s(records),
    )


def job_seconds(session: SearchSession, chosen: Ranked) -> float | None:
    """Return what the whole job takes with a candidate."""
    return session.work(chosen.candidate).seconds(chosen.measurement)


def standing(
    session: SearchSession, records: Sequence[Record], promise: Outlook | None = None
) -> Standing:
    """Return how the search stands.

    Args:
        promise: the outlook of the next probe; None: it is made for something else.
    """
    budget, cost_s = session.job.budget, probe_cost_s(records)
    best = recommend(records, session.allowed_bytes)
    left, total_left_s = session.study.candidates_left(), session.deadline.left_s
    return Standing(
        probes=sum(counts_as_probe(record) for record in records),
        most_probes=budget.probes,
        probing_s=probing_s(records),
        most_probing_s=60 * budget.minutes,
        left_s=max(min(room(session, records), left), 0) * cost_s if cost_s else None,
        total_left_s=total_left_s if math.isfinite(total_left_s) else None,
        candidates_left=left,
        best=best.chosen if isinstance(best, Recommendation) else None,
        allowed_bytes=session.allowed_bytes,
        outlook=promise,
    )
