"""The loop of a run: what can be ruled out, the next probe, whether another is worth it; then the
fastest again, in turns, until their order is certain."""

import itertools
import statistics
import time
from collections.abc import Sequence

from autotune.duration import Saving, Work, work_of
from autotune.errors import machine_error
from autotune.expectations import Expectations
from autotune.probe.measure import measure_candidate
from autotune.probe.protocol import Measurement
from autotune.probe.record import Record, counts_as_probe
from autotune.probe.repeats import repeatability
from autotune.recommend import NothingFits, Ranked, recommend
from autotune.search.dominance import dominated
from autotune.search.settling import contenders, gain_of_a_round
from autotune.search.stopping import Outlook, stop_reason
from autotune.search.study import Trial
from autotune.session import Session
from autotune.space.knobs import Candidate
from autotune.space.settings import settings

MAX_BUSY = 3
BUSY_WAIT_S = 5.0
CANNOT_FIT = "its estimate is beyond the memory that is there"


def search(session: Session) -> str:
    """Probe until it is time to stop; why it is."""
    busy = 0
    while True:
        records = session.study.records()
        rule_out(session, records)
        reason = stop_reason(
            session.job.budget,
            probes=sum(counts_as_probe(record) for record in records),
            seconds=probing_s(records),
            candidates_left=session.study.candidates_left(),
            outlook=outlook(session, records),
        )
        if reason is not None:
            return reason
        measurement = probe_next(session)
        busy = busy + 1 if measurement.outcome == "busy" else 0
        if busy >= MAX_BUSY:
            raise machine_error(measurement.reason, where="devices", hint="end them and --resume")
        if busy:
            time.sleep(BUSY_WAIT_S)


def probing_s(records: Sequence[Record]) -> float:
    """Seconds that all probes took."""
    return sum(r.measurement.seconds for r in records if r.measurement is not None)


def rule_out(session: Session, records: Sequence[Record]) -> None:
    """Leave out what cannot fit, by its estimate, or cannot win, by what was probed."""
    skipped = ruled_out(session, records)
    session.study.leave_out(frozenset(skipped))
    session.listener.ruled_out(skipped)


def ruled_out(session: Session, records: Sequence[Record]) -> dict[str, str]:
    """Keys of the candidates that need no probe, each with its reason."""
    return reasons_against(
        session.space.candidates, records, session.expectations, session.allowed_bytes
    )


def reasons_against(
    candidates: Sequence[Candidate],
    records: Sequence[Record],
    expectations: Expectations | None,
    allowed_bytes: int,
) -> dict[str, str]:
    """The same of a run that was made before; without `expectations`, by its probes alone."""
    hopeless = expectations.hopeless(candidates, records) if expectations else ()
    probed = {record.candidate.key for record in records}
    return {
        **{key: CANNOT_FIT for key in sorted(hopeless) if key not in probed},
        **dominated(candidates, records, allowed_bytes),
    }


def outlook(session: Session, records: Sequence[Record]) -> Outlook | None:
    """What the next probe promises; None where nothing is expected of it."""
    gain = session.study.gain()
    best = recommend(records, session.allowed_bytes)
    if gain is None or isinstance(best, NothingFits):
        return None
    seconds = [r.measurement.seconds for r in records if r.measurement and r.measurement.seconds]
    return Outlook(
        gain=gain,
        job_s=work(session).seconds(best.chosen.measurement),
        cost_s=statistics.median(seconds) if seconds else 0.0,
    )


def work(session: Session) -> Work:
    """How much the job has to train: the same for every candidate."""
    config = settings(session.job, session.facts, session.space.default(), "out").config
    return work_of(config)


def probe_next(session: Session) -> Measurement:
    """Ask for a candidate, probe it, and tell the study how that went."""
    trial, candidate = session.study.ask()
    return _probe(session, trial, candidate, watched=True)


def _probe(session: Session, trial: Trial, candidate: Candidate, *, watched: bool) -> Measurement:
    study, number = session.study, trial.number
    session.listener.probing(number, candidate)
    try:
        measurement = measure_candidate(
            session.server,
            session.run.probe(number),
            session.job,
            session.facts,
            candidate,
            rows=session.run.rows,
            output_dir=session.run.output,
            limit=session.limit_bytes,
            watch=study.cannot_win(trial) if watched else None,
            to_beat=study.best_value(),
        )
    except KeyboardInterrupt:
        study.tell(trial, Measurement(outcome="interrupted", reason="Ctrl-C"))
        raise
    study.tell(trial, measurement)
    session.listener.probed(Record(number=number, candidate=candidate, measurement=measurement))
    return measurement


# -- the fastest again


def settle(session: Session) -> None:
    """Measure the fastest again, in turns, until their order is certain, or not worth more."""
    for turn in itertools.count():
        records = session.study.records()
        group = unsettled(session, records, first=turn == 0)
        if not group:
            return
        session.listener.settling(group)
        # There and back again: what drifts meanwhile must not favour one of them.
        for one in group if turn % 2 else group[::-1]:
            trial, candidate = session.study.ask_again(one.candidate)
            _probe(session, trial, candidate, watched=False)


def unsettled(session: Session, records: Sequence[Record], *, first: bool) -> list[Ranked]:
    """Who has to be measured again; empty where nobody, or where it would cost more than it can
    save, or more than the budget has."""
    best = recommend(records, session.allowed_bytes)
    if isinstance(best, NothingFits):
        return []
    sd = repeatability(records).sd
    ranked = sorted((best.chosen, *best.ties, *best.runners_up), key=lambda one: -one.tokens_per_s)
    group = contenders(ranked, sd)
    budget, cost = session.job.budget, sum(one.measurement.seconds for one in group)
    probes = sum(counts_as_probe(record) for record in records)
    if probes + len(group) > budget.probes or probing_s(records) + cost > 60 * budget.minutes:
        return []
    job_s = work(session).seconds(best.chosen.measurement)
    if not first and job_s is not None and gain_of_a_round(group, sd) * job_s < cost:
        return []
    return group if len(group) > 1 else []


def saving(session: Session, records: Sequence[Record]) -> Saving | None:
    """What the search brought against the stack's defaults; None where that is not known."""
    best = recommend(records, session.allowed_bytes)
    if isinstance(best, NothingFits):
        return None
    default, chosen = session.space.default(), best.chosen
    ranked = (chosen, *best.ties, *best.runners_up)
    measured = next((one for one in ranked if one.candidate.key == default.key), None)
    speed = measured.tokens_per_s if measured else session.study.expected_value(default)
    todo = work(session)
    job_s = todo.seconds(chosen.measurement)
    default_s = todo.seconds(chosen.measurement, speed) if speed else None
    if job_s is None or default_s is None:
        return None
    return Saving(
        probing_s=probing_s(records), job_s=job_s, default_s=default_s, measured=bool(measured)
    )
