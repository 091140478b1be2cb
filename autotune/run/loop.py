"""The loop of a run: what can be ruled out, the next probe, whether another is worth it and the
budget has room for it; then the fastest again, in turns, until their order is certain."""

import itertools
import math
import statistics
import time
from collections.abc import Sequence

from autotune.errors import machine_error
from autotune.probe.protocol import Measurement
from autotune.run.expectations import Expectations
from autotune.run.flights import Flights
from autotune.run.listener import Standing
from autotune.run.recipe_values import measured_labels, next_of_values
from autotune.run.session import Session
from autotune.run.verify import MARGIN, PAUSES_S
from autotune.search.recommend import NothingFits, Ranked, Recommendation, recommend
from autotune.search.record import Record, counts_as_probe
from autotune.search.repeats import repeatability
from autotune.search.rules.dominance import dominated
from autotune.search.rules.replication import contenders, gain_of_a_round
from autotune.search.rules.stopping import Outlook, same_crash, stop_reason
from autotune.space.knobs import Candidate, value_label
from autotune.units import format_seconds

CANNOT_FIT = "its estimate exceeds the memory limit"
BEYOND_HOST = "its estimate exceeds the host's memory"


def search(session: Session) -> str:
    """Probe until it is time to stop; why it is."""
    flights = flights_of(session)
    reason = fly(session, flights)
    flights.cut("the search has ended")
    return reason


def fly(session: Session, flights: Flights) -> str:
    """Keep as many probes in flight as there is room for, until it is time to stop."""
    pauses = 0
    while True:
        records = session.study.records()
        skipped = rule_out(session, records)
        flights.stop(skipped)
        promise, values = outlook(session, records), values_to_probe(session, flights, records)
        reason = reason_to_stop(session, records, promise)
        # The user listed these values to learn what they cost: probes are kept for them.
        due = values and (reason is not None or room(session, records) <= len(values))
        session.listener.standing(standing(session, records, None if due else promise))
        if reason is None or (values and room(session, records) >= 1):
            if flights.has_room:
                begin_again(session, flights, values[0]) if due else begin_next(session, flights)
                if flights.has_room:
                    continue
        elif not flights:
            return reason
        if (measurement := flights.next_change(to_end=reason is not None)) is None:
            continue
        crashed = measurement.outcome == "crash"
        if crashed and (why := same_crash(session.study.records(), session.space.candidates)):
            return why
        if measurement.outcome != "busy":
            pauses = 0
        elif pauses < len(PAUSES_S):
            time.sleep(PAUSES_S[pauses])
            pauses += 1
        elif measurement.processes:
            raise machine_error(
                measurement.reason, where="devices", hint="end them and resume the run"
            )
        else:
            return f"{measurement.reason}, in {pauses + 1} probes one after another"


def flights_of(session: Session) -> Flights:
    """Return the probes at work: at first those that an earlier process of the run left."""
    return Flights(session, lambda: reserved_s(session, session.study.records()))


def reason_to_stop(
    session: Session, records: Sequence[Record], promise: Outlook | None
) -> str | None:
    """Return why the search ends now; None while it goes on."""
    return stop_reason(
        session.job.budget,
        probes=probes_of(records),
        seconds=budgeted_s(session, records),
        goes_on=nothing_since(session, records),
        candidates_left=session.study.candidates_left(),
        outlook=promise,
        no_time=no_time(session, records),
    )


def probes_of(records: Sequence[Record]) -> int:
    """Return the probes that a budget counts, those in flight among them."""
    return sum(counts_as_probe(record) or record.measurement is None for record in records)


def rule_out(session: Session, records: Sequence[Record]) -> dict[str, str]:
    """Leave out what cannot fit, by its estimate, or cannot win, by what was probed; return it."""
    skipped = ruled_out(session, records)
    session.study.leave_out(frozenset(skipped))
    session.listener.ruled_out(skipped)
    return skipped


def ruled_out(session: Session, records: Sequence[Record]) -> dict[str, str]:
    """Return keys of the candidates that need no probe, each with its reason."""
    return reasons_against(
        session.space.candidates, records, session.expectations, session.allowed_bytes
    )


def reasons_against(
    candidates: Sequence[Candidate],
    records: Sequence[Record],
    expectations: Expectations | None,
    allowed_bytes: int,
) -> dict[str, str]:
    """Return the same of a run that was made before; without `expectations`, by its probes
    alone."""
    hopeless = expectations.hopeless(candidates, records) if expectations else ()
    probed = {record.candidate.key for record in records if counts_as_probe(record)}
    reasons = {
        key: BEYOND_HOST if expectations and expectations.beyond_host(key) else CANNOT_FIT
        for key in sorted(hopeless)
    }
    speeds = expectations.speeds() if expectations else None
    return {
        **{key: reason for key, reason in reasons.items() if key not in probed},
        **dominated(candidates, records, allowed_bytes, speeds),
    }


def values_to_probe(
    session: Session, flights: Flights, records: Sequence[Record]
) -> list[Candidate]:
    """Return a candidate of each value that the job lists, no probe has measured or is measuring,
    and nothing rules out."""
    if not session.job.recipe:
        return []
    out, speeds = ruled_out(session, records), session.study.expected_values()
    ended = Measurement(outcome="ok", reason="in flight")
    flying = [Record(number=-1, candidate=one, measurement=ended) for one in flights.candidates]
    return next_of_values(session.job, session.space, [*records, *flying], out, speeds)


def begin_next(session: Session, flights: Flights) -> None:
    """Ask for a candidate and begin its probe. One that brings a value that the job lists is
    measured to the end, whether it can win or not."""
    records = session.study.records()
    trial, candidate = session.study.ask()
    brings_value = any(
        value_label(candidate[knob]) not in measured_labels(knob, records)
        for knob in session.job.recipe
        if knob in candidate.values
    )
    flights.begin(trial, candidate, watched=not brings_value)


def begin_again(session: Session, flights: Flights, candidate: Candidate) -> None:
    """Begin a probe of this candidate, which goes to the end, whether it can win or not."""
    flights.begin(*session.study.ask_for(candidate), watched=False)


def probe_again(session: Session, candidate: Candidate) -> Measurement:
    """Probe this candidate to the end, by itself."""
    flights = flights_of(session)
    begin_again(session, flights, candidate)
    return flights.next_ending()


# -- the fastest again


def settle(session: Session) -> bool:
    """Measure the fastest again, in turns, until their order is certain, or not worth more.

    Returns:
        Whether they all held; if one failed, the search has to go on without it.
    """
    for turn in itertools.count():
        group = unsettled(session, session.study.records())
        if not group:
            return True
        session.listener.settling(group)
        # There and back again: what drifts meanwhile must not favour one of them.
        for ranked in group if turn % 2 else group[::-1]:
            session.listener.standing(standing(session, session.study.records()))
            outcome = probe_again(session, ranked.candidate).outcome
            if outcome in ("busy", "interrupted"):
                return True  # what is known has to do
            if outcome != "ok":
                return False
    return True


def unsettled(session: Session, records: Sequence[Record]) -> list[Ranked]:
    """Return who is measured again; empty where nobody has to be, or the budget has no room."""
    group = too_close(session, records)
    return group if room(session, records) >= len(group) else []


def too_close(session: Session, records: Sequence[Record]) -> list[Ranked]:
    """Return whose order is not certain; empty where it is, or where to measure them again would
    cost more than it can save (but for the first round)."""
    best = recommend(records, session.allowed_bytes)
    if isinstance(best, NothingFits):
        return []
    sd = repeatability(records).sd
    ranked = sorted(
        (best.chosen, *best.ties, *best.runners_up), key=lambda candidate: -candidate.tokens_per_s
    )
    group = contenders(ranked, sd)
    if len(group) < 2:
        return []
    job_s, cost_s = (
        job_seconds(session, group[0]),
        sum(ranked_probe.measurement.seconds for ranked_probe in group),
    )
    is_first = all(ranked_probe.readings == 1 for ranked_probe in group)
    if not is_first and gain_of_a_round(group, sd) * (job_s or 0.0) < cost_s:
        return []
    return group


# -- the room that the budget leaves, and the promise of the next probe


def room(session: Session, records: Sequence[Record]) -> float:
    """Return how many more probes the budget has room for, by what they took so far."""
    budget, cost_s = session.job.budget, probe_cost_s(records)
    minutes_s = max(60 * budget.minutes - budgeted_s(session, records), 0.0)
    total_s = max(session.deadline.left_s - reserved_s(session, records), 0.0)
    return min(
        budget.probes - probes_of(records),
        math.ceil(minutes_s / cost_s) if cost_s else math.inf,
        total_s // probe_s(records) if cost_s else math.inf if total_s else 0.0,
    )


def no_time(session: Session, records: Sequence[Record]) -> str | None:
    """Return why the total budget has no room for another probe; None where it has."""
    left_s, kept_s = session.deadline.left_s, reserved_s(session, records)
    if left_s - kept_s > probe_s(records):
        return None
    if left_s <= 0:
        return f"{session.deadline.words} is used up"
    text = f"{session.deadline.words} has {format_seconds(left_s)} left"
    return f"{text}, of which {format_seconds(kept_s)} are for the verification" if kept_s else text


def reserved_s(session: Session, records: Sequence[Record]) -> float:
    """Return the seconds of a total budget that the verification keeps: 0 before there is
    something to verify, and where there is too little time for it anyway."""
    best = recommend(records, session.allowed_bytes)
    without = session.deadline.total_s is None or not session.options.verify
    if without or isinstance(best, NothingFits) or not has_time_to_verify(session, best):
        return 0.0
    return session.verification_s(best.chosen)


def has_time_to_verify(session: Session, recommendation: Recommendation) -> bool:
    """True if a verification may end before the deadline."""
    needed_s = session.verification_s(recommendation.chosen) / MARGIN
    return session.deadline.left_s >= needed_s


def probe_s(records: Sequence[Record]) -> float:
    """Return the median seconds from a probe's begin to its end so far; 0 before any."""
    seconds = [r.measurement.seconds for r in records if r.measurement and r.measurement.seconds]
    return statistics.median(seconds) if seconds else 0.0


def probe_cost_s(records: Sequence[Record]) -> float:
    """Return the median seconds of the run's own time that the probes took so far; 0 before any."""
    seconds = [wall_s(r.measurement) for r in records if r.measurement and r.measurement.seconds]
    return statistics.median(seconds) if seconds else 0.0


def probing_s(records: Sequence[Record]) -> float:
    """Return the seconds of the run's own time that all probes took."""
    return sum(wall_s(r.measurement) for r in records if r.measurement is not None)


def wall_s(measurement: Measurement) -> float:
    """Return the seconds of the run's own time that a probe took."""
    return measurement.seconds if measurement.wall_s is None else measurement.wall_s


def budgeted_s(session: Session, records: Sequence[Record]) -> float:
    """Return the seconds of `budget.minutes` that are used: by all probes of this session, and by
    those of earlier ones that were neither disturbed nor cut off."""
    return probing_s([r for r in records if counts_as_probe(r) or r.number >= session.earlier])


def nothing_since(session: Session, records: Sequence[Record]) -> bool:
    """True if a run goes on, and has probed nothing since."""
    return session.earlier > 0 and all(record.number < session.earlier for record in records)


def outlook(session: Session, records: Sequence[Record]) -> Outlook | None:
    """Return the expected gain of the next probe; None where there is no estimate."""
    gain = session.study.gain()
    best = recommend(records, session.allowed_bytes)
    if gain is None or isinstance(best, NothingFits):
        return None
    return Outlook(
        gain=gain,
        job_s=job_seconds(session, best.chosen),
        cost_s=probe_cost_s(records),
    )


def job_seconds(session: Session, chosen: Ranked) -> float | None:
    """Return the time of the whole job with a candidate."""
    return session.work(chosen.candidate).seconds(chosen.measurement)


def standing(
    session: Session, records: Sequence[Record], promise: Outlook | None = None
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
        probing_s=budgeted_s(session, records),
        most_probing_s=60 * budget.minutes,
        left_s=max(min(room(session, records), left), 0) * cost_s if cost_s else None,
        total_left_s=total_left_s if math.isfinite(total_left_s) else None,
        candidates_left=left,
        best=best.chosen if isinstance(best, Recommendation) else None,
        allowed_bytes=session.allowed_bytes,
        outlook=promise,
    )
