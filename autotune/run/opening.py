"""How a run begins, or goes on where it was: its folder, its facts, its space, its estimates."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.engine.call import Engine
from autotune.errors import machine_error, user_error
from autotune.estimate.estimate import Estimate, prior_residual
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.residual import Residual
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plain_data import NONSENSE, from_plain
from autotune.plan.candidates import TYPICAL_PROCESS
from autotune.plan.children import untraced
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.probe.survey import (
    Machine,
    allowed_memory,
    check_host_memory,
    memory_limit,
    refuse_untried,
    survey,
)
from autotune.process.child_server import ChildServer
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import OUTPUT, RunFolder
from autotune.run.deadline import Deadline, OutOfTime
from autotune.run.expectations import Expectations
from autotune.run.history import History
from autotune.run.job_session import JobSession
from autotune.run.listener import Listener
from autotune.run.session import Options
from autotune.run.stored import needed
from autotune.run.study import study_of
from autotune.search.sampler.params import guided_sampler
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.packages import QUANTISER
from autotune.space.quantization import not_installed

ESTIMATING = 0.5
"""Of the time that the survey leaves of a total budget so much may go into estimates (once what it
takes to import the stack is taken off: where they are cut, it is imported again); the rest is for
probes and the verification. Chosen, not measured."""


def new_folder(name: str) -> Path:
    """Return a folder for a run that was given none: `runs/NAME-TIME`, which does not exist yet."""
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], others) if not folder.exists())


def begin(
    run: RunFolder,
    text: str,
    options: Options,
    *,
    file: Path | None = None,
    own_storage: bool = True,
) -> None:
    """Start a run in a folder that is new or empty.

    Args:
        text: of the job, or of what is searched in its place.
        file: keeps it; None: the job's.
        own_storage: whether the study is in the run's own file.

    Raises:
        UserError: something is there already.
    """
    info = {
        "schema": 1,
        "version": __version__,
        "study": f"autotune-{uuid.uuid4().hex[:12]}",
        "own_storage": own_storage,
        "options": dataclasses.asdict(options),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "output": os.environ.get(OUTPUT),
    }
    run.begin(text, info, file)


def started(run: RunFolder) -> tuple[str, Options]:
    """Return the name of the run's study, and how the run was started.

    Raises:
        UserError: run.json does not say it.
    """
    info = run.read(run.run)
    with needed(run, run.run.name, "start a new run"):
        return from_plain(str, info["study"]), from_plain(Options, info.get("options", {}))


def change_options(run: RunFolder, **changes: Any) -> None:
    """Let a run go on with other options than it was started with."""
    if not changes:
        return
    with run.locked():
        info = run.read(run.run)
        options = dataclasses.replace(started(run)[1], **changes)
        write_json(run.run, {**info, "options": dataclasses.asdict(options)})


def open_job(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    server: ChildServer,
    engine: Engine,
    storage: str | None,
    listener: Listener,
    deadline: Deadline,
) -> JobSession:
    """Return everything that the run of a job needs, made now or as it was left.

    Raises:
        UserError: the job cannot be, or the run's files have changed.
        MachineError: the machine cannot do it.
        OutOfTime: the total budget has ended before model and data were known.
    """
    with deadline.cuts():
        facts = facts_of(job, run, server, listener, engine.machine)
    limit, allowed = memory_limit(job, facts.device), allowed_memory(job, facts.device)
    space = space_of(definition, job, facts, run)
    listener.surveyed(facts, space, limit)
    estimator = Estimator(
        job=job,
        facts=facts,
        limit=limit,
        server=server,
        folder=run.path / "estimates",
        rows=run.rows,
        progress=listener,
    )
    expectations = expected_in_time(estimator, space, run, listener, deadline, engine)
    name, options = started(run)
    sampler = guided_sampler(
        space,
        # A formula tells what cannot fit; without speeds the stack's defaults are the better start.
        {} if expectations.cut else expectations.estimates,
        expectations.prior,
        allowed_bytes=allowed,
        history=History.of_user().readings(job, facts, space, name) if options.history else (),
        seed=job.seed,
    )
    flying = engine.in_flight()
    study = study_of(run, name, space, sampler, allowed, listener.restored, storage, flying)
    return JobSession(
        job=job,
        run=run,
        facts=facts,
        space=space,
        study=study,
        server=server,
        engine=engine,
        listener=listener,
        limit_bytes=limit,
        allowed_bytes=allowed,
        expectations=expectations,
        options=options,
        deadline=deadline,
        earlier=study.trials,
    )


def facts_of(
    job: Job,
    run: RunFolder,
    server: ChildServer,
    progress: Progress,
    machine: Machine | None = None,
) -> Facts:
    """Return the facts of model, data, machine and stack before any probe.

    Args:
        machine: that runs the probes; None: this one.

    Raises:
        UserError: the job cannot be.
        MachineError: the machine or its packages cannot do it.
    """
    if machine is None:
        refuse_untried(job)
    progress.surveying(job)
    if server.fresh:
        progress.starting_anew(server.fresh)
    facts = survey(job, run, server, machine=machine)
    if missing := not_installed(job, facts):
        raise machine_error(missing, where="job", hint=f"pip install {QUANTISER}")
    check_host_memory(job, facts)
    return facts


def space_of(definition: SpaceDefinition, job: Job, facts: Facts, run: RunFolder) -> SearchSpace:
    """Return the candidates of the job. The space of a run that starts is remembered; that of one
    that goes on is held against it.

    Raises:
        UserError: it is another one now.
    """
    space = bind(definition, job, facts)
    keys = "\n".join(candidate.key for candidate in space.candidates)
    now = {"candidates": len(space.candidates), "sha256": hashlib.sha256(keys.encode()).hexdigest()}
    earlier = read_json(run.space)
    if earlier is None:
        write_json(run.space, now)
    elif earlier != now:
        raise user_error(
            "the search space has changed since this run started",
            where=str(run.path),
            hint="restore the packages and the version of autotune, or start a new run",
        )
    return space


# -- what is expected of the candidates


def expected_in_time(
    estimator: Estimator,
    space: SearchSpace,
    run: RunFolder,
    listener: Listener,
    deadline: Deadline,
    engine: Engine,
) -> Expectations:
    """Return the expectations of every candidate; by formula, where the total budget has no time
    for traces."""
    here = not engine.is_remote  # else the ceilings of this machine's devices say nothing
    estimating_s = ESTIMATING * max(deadline.left_s - estimator.server.import_s, 0.0)
    try:
        with deadline.cuts(keep_s=deadline.left_s - estimating_s):
            expectations = expected(estimator, space, run, here=here)
    except OutOfTime:
        listener.unestimated(estimating_s)
        expectations = by_formula(estimator, space, run)
    listener.expecting(expectations)
    return expectations


def expected(
    estimator: Estimator, space: SearchSpace, run: RunFolder, *, here: bool = True
) -> Expectations:
    """Return the expectations of every candidate, kept in the run's folder: a run that goes on
    expects what it expected before, and only what was not traced then is traced now."""
    stored = _stored(run, estimator.limit)
    missing = [
        task
        for task in estimator.tasks(space.candidates)
        if any(member.candidate.key not in stored.estimates for member in task.members)
    ]
    bounds = estimator.ruled_out(space.candidates)
    if not missing and bounds.keys() <= stored.estimates.keys():
        return stored
    estimator.progress.estimating(len(space.candidates))
    estimator = estimator.with_ceilings(None, len(space.candidates) if here else 0)
    replies = estimator.replies(missing)
    estimates = {**bounds, **stored.estimates, **estimator.combined(missing, replies)}
    expectations = _with(estimates, stored, replies, estimator)
    write_json(run.estimates, expectations.plain())
    return expectations


def by_formula(estimator: Estimator, space: SearchSpace, run: RunFolder) -> Expectations:
    """Return what the closed form expects of candidates that there was no time to trace: memory
    alone. It is not kept, so that a run that goes on traces them."""
    stored = _stored(run, estimator.limit)
    tasks = estimator.tasks(space.candidates)
    reply = untraced("the total budget had no time to trace it")
    replies = [dataclasses.replace(reply, process_bytes=TYPICAL_PROCESS)] * len(tasks)
    estimates = estimator.combined(tasks, replies) | estimator.ruled_out(space.candidates)
    expectations = _with({**estimates, **stored.estimates}, stored, replies, estimator)
    return dataclasses.replace(expectations, cut=True)


def _with(
    estimates: Mapping[str, Estimate],
    stored: Expectations,
    replies: Collection[EstimateReply],
    estimator: Estimator,
) -> Expectations:
    """Return estimates with the prior that was stored, or else with that of the replies."""
    prior = stored.prior
    if not stored.estimates:
        prior = prior_of(replies, estimator.facts, estimator.job.devices.total)
    return dataclasses.replace(stored, estimates=estimates, prior=prior)


def prior_of(replies: Collection[EstimateReply], facts: Facts, devices: int) -> Residual:
    """Return the memory assumed of a process before any was measured."""
    process_bytes = max((reply.process_bytes for reply in replies), default=0) or TYPICAL_PROCESS
    return prior_residual(facts.device, process_bytes, devices)


def _stored(run: RunFolder, limit: int) -> Expectations:
    """Return what the run's folder has; nothing where another version wrote it, or it was damaged:
    then everything is traced again."""
    data = read_json(run.estimates)
    with contextlib.suppress(*NONSENSE):
        return from_plain(Expectations, data)
    return Expectations(estimates={}, prior=Residual(), limit_bytes=limit)
