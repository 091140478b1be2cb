"""The loop of a run: what can be ruled out, the next probe, whether another is worth it; then the
fastest again, in turns, until their order is certain."""

import itertools
import statistics
import time
from collections.abc import Sequence

from autotune.errors import machine_error
from autotune.probe.measure import measure_candidate
from autotune.probe.protocol import Measurement
from autotune.run.expectations import Expectations
from autotune.run.session import Session
from autotune.search.job_time import work_of
from autotune.search.recommend import NothingFits, Ranked, recommend
from autotune.search.record import Record, counts_as_probe
from autotune.search.repeats import repeatability
from autotune.search.rules.dominance import dominated
from autotune.search.rules.replication import contenders, gain_of_a_round
from autotune.search.rules.stopping import Outlook, stop_reason
from autotune.search.study import Trial
from autotune.space.knobs import Candidate, value_label
from autotune.space.settings import settings

MAX_BUSY = 3
BUSY_WAIT_S = 5.0
CANNOT_FIT = "its estimate exceeds the memory limit"
BEYOND_HOST = "its estimate exceeds the host's memory"


def search(session: Session) -> str:
    """Probe until it is time to stop; why it is."""
    busy_probes = 0
    while True:
        records = session.study.records()
        rule_out(session, records)
        reason = reason_to_stop(session, records)
        candidate = unprobed_value(session, records) if reason is not None else None
        if reason is not None and (candidate is None or out_of_budget(session, records)):
            return reason
        measurement = probe_next(session) if candidate is None else probe_again(session, candidate)
        busy_probes = busy_probes + 1 if measurement.outcome == "busy" else 0
        if busy_probes >= MAX_BUSY:
            raise machine_error(measurement.reason, where="devices", hint="end them and --resume")
        if busy_probes:
            time.sleep(BUSY_WAIT_S)


def reason_to_stop(session: Session, records: Sequence[Record]) -> str | None:
    """Why the search ends now; None while it goes on."""
    return stop_reason(
        session.job.budget,
        probes=sum(counts_as_probe(record) for record in records),
        seconds=probing_s(records),
        candidates_left=session.study.candidates_left(),
        outlook=outlook(session, records),
    )


def out_of_budget(session: Session, records: Sequence[Record], *, probes: int = 1) -> bool:
    """Whether the budget has no room for that many more probes."""
    probes_made, budget = sum(counts_as_probe(record) for record in records), session.job.budget
    return probes_made + probes > budget.probes or probing_s(records) >= 60 * budget.minutes


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


def outlook(session: Session, records: Sequence[Record]) -> Outlook | None:
    """What the next probe promises; None where nothing is expected of it."""
    gain = session.study.gain()
    best = recommend(records, session.allowed_bytes)
    if gain is None or isinstance(best, NothingFits):
        return None
    seconds = [r.measurement.seconds for r in records if r.measurement and r.measurement.seconds]
    return Outlook(
        gain=gain,
        job_s=job_seconds(session, best.chosen),
        cost_s=statistics.median(seconds) if seconds else 0.0,
    )


def job_seconds(session: Session, chosen: Ranked) -> float | None:
    """What the whole job takes with a candidate."""
    config = settings(session.job, session.facts, chosen.candidate).config
    return work_of(config).seconds(chosen.measurement)


def unprobed_value(session: Session, records: Sequence[Record]) -> Candidate | None:
    """The fastest expected candidate with a recipe value that no probe has had yet: the user
    listed it to learn what it costs."""
    out = ruled_out(session, records)
    speeds = session.study.expected_values()
    for knob in session.space.free_knobs:
        if knob.kind != "recipe":
            continue
        labels = {value_label(r.candidate[knob.name]) for r in records if counts_as_probe(r)}
        unprobed = [
            candidate
            for candidate in session.space.candidates
            if value_label(candidate[knob.name]) not in labels and candidate.key not in out
        ]
        if unprobed:
            return max(unprobed, key=lambda candidate: speeds.get(candidate.key, 0.0))
    return None


def probe_next(session: Session) -> Measurement:
    """Ask for a candidate, probe it, and tell the study how that went."""
    trial, candidate = session.study.ask()
    return _probe(session, trial, candidate, watched=True)


def probe_again(session: Session, candidate: Candidate) -> Measurement:
    """Probe this candidate to the end, whether it can win or not."""
    trial, candidate = session.study.ask_for(candidate)
    return _probe(session, trial, candidate, watched=False)


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
            outcome = probe_again(session, ranked.candidate).outcome
            if outcome == "busy":
                return True  # what is known has to do
            if outcome != "ok":
                return False
    return True


def unsettled(session: Session, records: Sequence[Record]) -> list[Ranked]:
    """Who has to be measured again; empty where nobody, or where it would cost more than it can
    save (but for the first round), or more than the budget has."""
    best = recommend(records, session.allowed_bytes)
    if isinstance(best, NothingFits):
        return []
    sd = repeatability(records).sd
    ranked = sorted(
        (best.chosen, *best.ties, *best.runners_up), key=lambda candidate: -candidate.tokens_per_s
    )
    group = contenders(ranked, sd)
    if len(group) < 2 or out_of_budget(session, records, probes=len(group)):
        return []
    job_s, cost_s = (
        job_seconds(session, group[0]),
        sum(ranked_probe.measurement.seconds for ranked_probe in group),
    )
    is_first = all(ranked_probe.readings == 1 for ranked_probe in group)
    if not is_first and gain_of_a_round(group, sd) * (job_s or 0.0) < cost_s:
        return []
    return group
