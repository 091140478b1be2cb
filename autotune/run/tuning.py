"""READ THIS FIRST: how a job becomes a verified bundle.

    survey -> bind the space -> estimate -> ( ask -> probe -> tell )* -> the fastest again
           -> recommend -> emit -> verify

Everything is recorded as it happens, so that a run that is killed goes on where it was.
"""

import dataclasses
import hashlib
import time
import uuid

from autotune import __version__
from autotune.errors import machine_error, user_error
from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.job.yaml_file import to_yaml
from autotune.probe.measure import measurement_of_reply
from autotune.probe.protocol import Measurement
from autotune.probe.survey import (
    allowed_memory,
    check_host_memory,
    memory_limit,
    refuse_untried,
    survey,
)
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ProbeServer
from autotune.run.conclusion import conclude, interrupted
from autotune.run.estimates import Expecter
from autotune.run.expectations import Expectations
from autotune.run.history import History
from autotune.run.loop import search, settle
from autotune.run.memory_floor import process_alone, without_probes
from autotune.run.session import Listener, Options, Result, Session
from autotune.search import SAMPLERS
from autotune.search.sampler.params import Sampler, compared_sampler, guided_sampler
from autotune.search.study import Study
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import PACKAGE, not_installed


def tune(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    *,
    storage: str | None = None,
    listener: Listener | None = None,
    options: Options | None = None,
) -> Result:
    """Find the fastest stable candidate of a job and write its verified bundle.

    Args:
        run: where everything is kept; a run that was started there goes on.
        storage: an Optuna storage URL in place of the run's own SQLite file.
        options: how to search; a run that goes on searches as it was started.

    Raises:
        UserError: the job cannot be (exit code 2).
        MachineError: the machine cannot do it (exit code 3).
    """
    began = time.monotonic()
    if not run.exists():
        begin(job, run, storage, options)
    with run.locked(), ProbeServer(run.log) as server:
        run.ending.unlink(missing_ok=True)
        session = None
        try:
            session = open_session(job, definition, run, server, storage, listener or Listener())
            recover(session)
            nothing = process_alone(session)
            result = without_probes(session, nothing) if nothing else searched(session)
        except KeyboardInterrupt:
            result = interrupted(session)
        saving = None if result.saving is None else dataclasses.asdict(result.saving)
        ending = {"outcome": result.outcome, "stop_reason": result.stop_reason, "saving": saving}
        write_json(run.ending, ending)
    return dataclasses.replace(result, seconds=round(time.monotonic() - began, 3))


def searched(session: Session) -> Result:
    """Search, measure the fastest again, and conclude."""
    reason = search(session)
    session.listener.stopped(reason)
    while not settle(session):
        reason = search(session)
        session.listener.stopped(reason)
    if session.options.history:
        remember(session)
    return conclude(session, reason)


def begin(
    job: Job, run: RunFolder, storage: str | None = None, options: Options | None = None
) -> None:
    """Start a run in a folder that is new or empty: its job, its name and how it searches are
    kept there.

    Raises:
        UserError: something is there already.
    """
    info = {
        "schema": 1,
        "version": __version__,
        "study": f"autotune-{uuid.uuid4().hex[:12]}",
        "own_storage": storage is None,
        "options": dataclasses.asdict(options or Options()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    run.begin(to_yaml(job.plain()), info)


def open_session(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    server: ProbeServer,
    storage: str | None,
    listener: Listener,
) -> Session:
    """All that a run needs: facts, limits, the bound space, its estimates and the study."""
    refuse_untried(job)
    listener.surveying(job)
    if server.fresh:
        listener.starting_anew(server.fresh)
    facts = survey(job, run, server)
    if missing := not_installed(job, facts):
        raise machine_error(missing, where="job", hint=f"pip install {PACKAGE}")
    limit = memory_limit(job, facts.device)
    check_host_memory(job, facts)
    space = bind(definition, job, facts)
    keep_space(run, space)
    allowed = allowed_memory(job, facts.device)
    listener.surveyed(facts, space, limit)
    expecter = Expecter(
        job, facts, space, run, server, limit, listener.measuring, listener.estimated
    )
    listener.estimating(len(space.candidates))
    expectations = expecter.all()
    info = run.read(run.run)
    name, options = info["study"], Options(**info.get("options", {}))
    study = Study(
        space,
        storage or run.database,
        name,
        allowed_bytes=allowed,
        sampler=chosen_sampler(options, job, facts, space, expectations, allowed, name),
    )
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
        expectations=expectations,
        options=options,
    )


def remember(session: Session) -> None:
    """Let later runs know what was measured."""
    History.of_user().keep(
        session.run.read(session.run.run)["study"],
        session.job,
        session.facts,
        session.study.records(),
        session.expectations,
    )


def chosen_sampler(
    options: Options,
    job: Job,
    facts: Facts,
    space: SearchSpace,
    expectations: Expectations,
    allowed: int,
    study: str,
) -> Sampler:
    """Ours, or the one to compare it with.

    Raises:
        UserError: there is no sampler of that name.
    """
    if options.sampler not in SAMPLERS:
        what = f"there is no sampler `{options.sampler}`"
        raise user_error(what, where="sampler", hint=f"choose from {', '.join(SAMPLERS)}")
    if options.sampler != SAMPLERS[0]:
        return compared_sampler(options.sampler, space, opening(space), job.seed)
    history = []
    if options.history:
        history = History.of_user().readings(job, facts, space, study)
    return guided_sampler(
        space,
        expectations.estimates,
        expectations.prior,
        allowed_bytes=allowed,
        history=history,
        seed=job.seed,
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
    """What samplers without estimates begin with: the stack's defaults, then without
    checkpointing, then less padding."""
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
    session.study.drop_waiting()
    known = {record.number for record in session.study.records()}
    for trial in session.study.running():
        if trial.number not in known:
            session.study.abandon(trial)
            continue
        measurement = Measurement(outcome="interrupted", reason="the run was killed during it")
        reply = read_json(session.run.probe(trial.number).reply)
        if isinstance(reply, dict):
            measurement = measurement_of_reply(reply)
        session.study.tell(trial, measurement)
