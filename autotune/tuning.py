"""READ THIS FIRST: how a job becomes a verified bundle.

    survey -> bind the space -> ( estimate -> ask -> probe -> tell )* -> recommend -> emit -> verify

Everything is recorded as it happens, so that a run that is killed goes on where it was.
"""

import dataclasses
import hashlib
import time
import uuid

from autotune import __version__
from autotune.conclusion import conclude, interrupted
from autotune.errors import machine_error, user_error
from autotune.expecter import Expecter
from autotune.job import Job, KnobValue
from autotune.probe.measure import measure_candidate, replied
from autotune.probe.protocol import Measurement, read_json, write_json
from autotune.probe.record import Record, counts_as_probe
from autotune.probe.runner import ProbeServer
from autotune.run_folder import RunFolder
from autotune.search.stopping import stop_reason
from autotune.search.study import Study
from autotune.session import Listener, Result, Session
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.spaces import SearchSpace, bind
from autotune.surveying import allowed_memory, memory_limit, survey
from autotune.yaml_file import to_yaml

MAX_BUSY = 3
BUSY_WAIT_S = 5.0


def tune(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    *,
    storage: str | None = None,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest stable candidate of a job and write its verified bundle.

    Args:
        run: where everything is kept; a run that was started there goes on.
        storage: an Optuna storage URL in place of the run's own SQLite file.

    Raises:
        UserError: the job cannot be (exit code 2).
        MachineError: the machine cannot do it (exit code 3).
    """
    began = time.monotonic()
    if not run.exists():
        begin(job, run, storage)
    with run.locked(), ProbeServer(run.log) as server:
        session = open_session(job, definition, run, server, storage, listener or Listener())
        try:
            recover(session)
            reason = search(session)
            session.listener.stopped(reason)
            result = conclude(session, reason)
        except KeyboardInterrupt:
            result = interrupted(session)
    return dataclasses.replace(result, seconds=round(time.monotonic() - began, 3))


def begin(job: Job, run: RunFolder, storage: str | None = None) -> None:
    """Start a run in a folder that is new or empty: its job and its name are kept there.

    Raises:
        UserError: something is there already.
    """
    info = {
        "schema": 1,
        "version": __version__,
        "study": f"autotune-{uuid.uuid4().hex[:12]}",
        "own_storage": storage is None,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    run.begin(to_yaml(job.plain()), info)


def search(session: Session) -> str:
    """Probe until it is time to stop; why it is."""
    busy = 0
    while True:
        records = session.study.records()
        reason = stop_reason(
            session.job.budget,
            probes=sum(counts_as_probe(record) for record in records),
            seconds=sum(r.measurement.seconds for r in records if r.measurement is not None),
            candidates_left=session.study.candidates_left(),
        )
        if reason is not None:
            return reason
        measurement = probe_next(session)
        busy = busy + 1 if measurement.outcome == "busy" else 0
        if busy >= MAX_BUSY:
            raise machine_error(measurement.reason, where="devices", hint="end them and --resume")
        if busy:
            time.sleep(BUSY_WAIT_S)


def worth_probing(session: Session, candidate: Candidate) -> bool:
    """Whether a candidate may fit, by its estimate and what the probes so far say of estimates.

    Its path is traced now if it has not been; all that is hopeless on it is left out with it.
    """
    expectations = session.expecter.of(candidate)
    hopeless = expectations.hopeless(session.space.candidates, session.study.records())
    session.study.leave_out(hopeless)
    session.listener.judged(candidate, candidate.key not in hopeless)
    return candidate.key not in hopeless


def probe_next(session: Session) -> Measurement:
    """Ask for a candidate, probe it, and tell the study how that went."""
    trial, candidate = session.study.ask(lambda one: worth_probing(session, one))
    session.listener.probing(trial.number, candidate)
    try:
        measurement = measure_candidate(
            session.server,
            session.run.probe(trial.number),
            session.job,
            session.facts,
            candidate,
            rows=session.run.rows,
            output_dir=session.run.output,
            limit=session.limit_bytes,
            watch=session.study.cannot_win(trial),
        )
    except KeyboardInterrupt:
        session.study.tell(trial, Measurement(outcome="interrupted", reason="Ctrl-C"))
        raise
    session.study.tell(trial, measurement)
    record = Record(number=trial.number, candidate=candidate, measurement=measurement)
    session.listener.probed(record)
    return measurement


def open_session(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    server: ProbeServer,
    storage: str | None,
    listener: Listener,
) -> Session:
    """All that a run needs: facts, limits, the bound space and the study."""
    listener.surveying(job)
    facts = survey(job, run, server)
    limit = memory_limit(job, facts.device)
    space = bind(definition, job, facts)
    keep_space(run, space)
    allowed = allowed_memory(job, facts.device)
    study = Study(
        space,
        storage or run.database,
        run.read(run.run)["study"],
        allowed_bytes=allowed,
        opening=opening(space),
        seed=job.seed,
    )
    listener.surveyed(facts, space, limit)
    return Session(
        job=job,
        run=run,
        facts=facts,
        space=space,
        study=study,
        server=server,
        listener=listener,
        limit_bytes=limit,
        allowed_bytes=allowed,
        expecter=Expecter(job, facts, space, run, server, limit, listener.measuring),
    )


def keep_space(run: RunFolder, space: SearchSpace) -> None:
    """Remember the space of a run that starts; hold one that goes on against it.

    Raises:
        UserError: the search space file has changed since.
    """
    keys = "\n".join(candidate.key for candidate in space.candidates)
    now = {"candidates": len(space.candidates), "sha256": hashlib.sha256(keys.encode()).hexdigest()}
    before = read_json(run.space)
    if before is None:
        write_json(run.space, now)
    elif before != now:
        raise user_error(
            "the search space is not what it was when this run started",
            where=str(run.path),
            hint="restore the search space file, or start a new run",
        )


def opening(space: SearchSpace) -> tuple[Candidate, ...]:
    """What is probed first: the stack's defaults, then without checkpointing, then less padding."""
    first = space.default()
    changes: tuple[dict[str, KnobValue], ...] = (
        {"gradient_checkpointing": False},
        {"train_sampling_strategy": "group_by_length"},
    )
    wanted = [{**first.values, **change} for change in changes]
    others = [
        min(space.candidates, key=lambda c: sum(c.values.get(n) != v for n, v in values.items()))
        for values in wanted
    ]
    return (first, *others)


def recover(session: Session) -> None:
    """Close the trials that a killed process left running: with their reply, where it is whole."""
    known = {record.number for record in session.study.records()}
    for trial in session.study.running():
        if trial.number not in known:
            session.study.abandon(trial)
            continue
        measurement = Measurement(outcome="interrupted", reason="the run was killed during it")
        reply = read_json(session.run.probe(trial.number).reply)
        if isinstance(reply, dict):
            measurement = replied(reply)
        session.study.tell(trial, measurement)
