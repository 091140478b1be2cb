"""Why a run recommends nothing, where its probes cannot tell: no time, no quiet, no end of a probe
(with the log to read and the setting to raise), or too little memory for any training process."""

import statistics
from collections import Counter
from collections.abc import Sequence

from autotune.errors import Problem
from autotune.job.job import Job
from autotune.plan.least_memory import LOWER_BOUND
from autotune.probe.outcome import busy_text
from autotune.process.progress import ProgressReader
from autotune.process.run_folder import RunFolder
from autotune.run.loop import no_time, nothing_since
from autotune.run.session import Result, Session
from autotune.search.recommend import NothingFits
from autotune.search.record import Record, counts_as_probe, excess_bytes
from autotune.units import format_bytes, format_seconds

MIB = 2**20
SURE = 2.5
"""Standard deviations by which the process must be above the limit: on the CPU that leaves what a
process with the stack was measured to hold before it trains."""


def before_the_search(total: str) -> Result:
    """Return the result of a run whose time was over before its model and data were known.

    Args:
        total: the total budget, in words.
    """
    problem = Problem(
        where="",
        what=f"{total} ended before the model and the data were known",
        hint="raise `budget: {total: ...}`",
    )
    return Result(
        outcome="nothing_measured",
        records=(),
        stop_reason=problem.what,
        space_size=0,
        nothing_measured=problem,
    )


def too_busy(session: Session, records: Sequence[Record], stop_reason: str) -> Problem | None:
    """Return the problem of a run whose probes that fit ran while others took the cores, and of one
    that went on why it probed nothing since; None: there was no such probe."""
    measured = [record.measurement for record in records if record.measurement is not None]
    busy = [measurement for measurement in measured if measurement.outcome == "busy"]
    waited = [m.processor_wait_share for m in busy if m.processor_wait_share is not None]
    if not waited:
        return None
    count = "1 probe" if len(waited) == 1 else f"{len(waited)} probes"
    since = f"; {stop_reason}" if nothing_since(session, records) else ""
    return Problem(
        where="",
        what=f"{busy_text(statistics.median(waited))} (threads waited for a core, in {count}); "
        f"so the fastest cannot be measured{since}",
        hint="end the other computations here (`top` shows them), and go on with: "
        f"{session.run.resumption}; or rank what it is, with its errors and never as verified: "
        "--accept-noise",
    )


def nothing_measured(
    session: Session, records: Sequence[Record], stop_reason: str
) -> Problem | None:
    """Return why it is not known whether anything fits; None where it is known.

    It is not known where a probe timed out: with more time it might have fitted. Nor where all
    probes ended otherwise than for lack of memory, or the total budget ended before the last.

    Args:
        records: of a run without a stable candidate.
        stop_reason: why the search ended.
    """
    measured = [(r, r.measurement) for r in records if r.measurement is not None]
    probes = [record for record, _ in measured if counts_as_probe(record)]
    late = [record for record, m in measured if m.outcome == "timeout"]
    too_large = [
        record
        for record, m in measured
        if m.outcome == "host_oom" or (excess_bytes(m, session.allowed_bytes) or 0) > 0
    ]
    left = session.study.candidates_left()
    cut = left > 0 and no_time(session, records) is not None
    if late:
        return _timed_out(late, probes, session)
    if cut or not probes:
        before = f"{len(probes)} probes did not fit, and " if probes else "no probe has ended, and "
        return Problem(
            where="",
            what=f"{before}{left} candidates were not probed: {stop_reason}",
            hint="raise `budget: {total: ...}`",
        )
    return None if too_large else _failed(probes, session.run)


def _timed_out(late: Sequence[Record], probes: Sequence[Record], session: Session) -> Problem:
    """Return the last that timed out, and what to raise; a hang is no lack of time."""
    last, minutes = late[-1], session.job.budget.probe_minutes
    assert last.measurement is not None
    share = "all probes" if len(late) == len(probes) else f"{len(late)} of {len(probes)} probes"
    if last.measurement.inferred:
        what = f"{share} timed out; the last: {last.measurement.reason}"
        hint = "that log shows what it waited for"
        return Problem(where=_log(session.run, last), what=what, hint=hint)
    events = ProgressReader(session.run.probe(last.number).progress).new_events()
    steps = sum(event["event"] == "micro_step" for event in events)
    return Problem(
        where=_log(session.run, last),
        what=f"{share} timed out: a probe may take {format_seconds(60 * minutes)}, and the last "
        f"one had trained {steps} micro-steps by then; whether anything fits is not known",
        hint=f"raise `budget: {{probe_minutes: {2 * minutes:g}}}`, or read that log",
    )


def _failed(probes: Sequence[Record], run: RunFolder) -> Problem:
    """Return the first failure, and how all ended."""
    first = probes[0]
    assert first.measurement is not None
    outcomes = Counter(r.measurement.outcome for r in probes if r.measurement is not None)
    counts = ", ".join(f"{count} x {outcome}" for outcome, count in outcomes.items())
    what = f"no probe finished ({counts}); the first: {first.measurement.reason}"
    return Problem(where=_log(run, first), what=what, hint="read that log")


def _log(run: RunFolder, record: Record) -> str:
    return str(run.probe(record.number).stderr)


# -- too little memory for any training process


def process_alone(session: Session) -> NothingFits | None:
    """Return why nothing can fit, where the process alone takes more than a candidate may; else
    None. A script's process is not known before its first probe."""
    prior, job = session.expectations.prior, session.job
    process_bytes = prior.offset_bytes
    measured = (record.measurement for record in session.study.records())
    one_fitted = any(each is not None and each.outcome == "ok" for each in measured)
    if one_fitted or not session.expectations.estimates:
        return None
    if process_bytes - SURE * prior.sigma_bytes <= session.allowed_bytes:
        return None
    peaks = [
        # A bound leaves the process itself out.
        estimate.peak_memory_bytes + (process_bytes if estimate.method == LOWER_BOUND else 0)
        for estimate in session.expectations.estimates.values()
    ]
    smallest = round(min(peaks, default=process_bytes))
    return NothingFits(
        nearest=None,
        short_bytes=smallest - session.allowed_bytes,
        short_is_lower_bound=False,
        rejected={},
        why=f"the memory limit is too low: an empty training process needs about "
        f"{format_bytes(round(process_bytes))}, and there are {_what_there_is(session)}. The "
        f"smallest configuration needs an estimated {format_bytes(smallest)}: set at least "
        f"`devices.memory: {least_limit(smallest, job)}`",
    )


def least_limit(peak_bytes: int, job: Job) -> str:
    """Return the limit whose headroom leaves so much, as a job has it."""
    return f"{-int(-peak_bytes / (1 - job.headroom) // MIB)}MiB"


def without_probes(session: Session, nothing: NothingFits) -> Result:
    """Return the result of a run that need not begin."""
    return Result(
        outcome="nothing_fits",
        records=tuple(session.study.records()),
        stop_reason="a training process alone takes more than the memory that is there",
        space_size=len(session.space.candidates),
        nothing_fits=nothing,
    )


def _what_there_is(session: Session) -> str:
    limit, share = format_bytes(session.limit_bytes), session.job.headroom
    if not share:
        return limit
    return f"{format_bytes(session.allowed_bytes)} ({limit} less the headroom of {share:.0%})"
