"""READ THIS FIRST: how a job becomes a verified bundle.

    survey -> bind the space -> estimate -> ( ask -> probe -> tell )* -> the fastest again
           -> recommend -> emit -> verify

Everything is recorded as it happens, so that a run that is killed goes on where it was. The search
of a user's script is the same run, opened otherwise (`script/tuning.py`).
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable

from autotune.engine.opening import engine_of
from autotune.job.job import Job
from autotune.job.yaml_file import to_yaml
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.messages import write_json
from autotune.process.run_folder import STORAGE, RunFolder
from autotune.run.conclusion import conclude, interrupted
from autotune.run.deadline import Deadline, OutOfTime
from autotune.run.history import History
from autotune.run.listener import Listener
from autotune.run.loop import search, settle
from autotune.run.nothing_measured import before_the_search, process_alone, without_probes
from autotune.run.opening import begin, open_job, started
from autotune.run.session import Options, Result, Session
from autotune.search.storage import faults_of_storage
from autotune.space.definition import SpaceDefinition


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
        options: how a new run searches; with it none may have been started there. Without, a run
            that goes on searches as it was started, a new one as by default.

    Raises:
        UserError: the job cannot be (exit code 2).
        MachineError: the machine cannot do it (exit code 3).
    """
    follower = listener or Listener()

    def opened(stack: contextlib.ExitStack) -> Session:
        name, kept = started(run)
        if kept.engine.name == "local":  # elsewhere it is a lane that has the devices
            stack.enter_context(devices_locked(job.devices, run.path, follower.waiting))
        deadline = Deadline(total_s=job.budget.total)
        with deadline.cuts():
            server = stack.enter_context(ChildServer(run.log))
        engine = stack.enter_context(engine_of(kept.engine, job, run, name, server))
        return open_job(job, definition, run, server, engine, storage, follower, deadline)

    if options is not None:
        run.refuse_used()
    with run.locked():
        if options is not None or not run.exists():
            text = to_yaml(job.plain())
            begin(run, text, options or Options(), own_storage=storage is None)
        return tuned(run, opened, STORAGE if storage is not None else str(run.database))


def tuned(
    run: RunFolder, opened: Callable[[contextlib.ExitStack], Session], storage: str
) -> Result:
    """Open a session, search with it and conclude; how that ended is kept in the run's folder.

    Args:
        opened: makes the session; what has to be closed in the end goes on its stack.
        storage: where the study is, for messages about its faults.
    """
    run.ending.unlink(missing_ok=True)
    session, began = None, time.monotonic()
    with contextlib.ExitStack() as stack, faults_of_storage(storage):
        try:
            session = opened(stack)
            began = session.deadline.began  # before that others may have had the devices
            result = searched(session)
        except KeyboardInterrupt:
            result = interrupted(session)
        except OutOfTime as cut:
            result = before_the_search(str(cut))
        keep_ending(run, result)
    return dataclasses.replace(result, seconds=round(time.monotonic() - began, 3))


def searched(session: Session) -> Result:
    """Search, measure the fastest again until their order is certain, and conclude."""
    shortage = process_alone(session)
    if shortage:
        return without_probes(session, shortage)
    reason = search(session)
    session.listener.stopped(reason)
    while not settle(session):
        reason = search(session)
        session.listener.stopped(reason)
    remember(session)
    return conclude(session, reason)


def remember(session: Session) -> None:
    """Let later runs know what was measured, unless this one is to leave no trace."""
    if not session.options.history:
        return
    History.of_user().keep(
        session.run.read(session.run.run)["study"],
        session.job,
        session.facts,
        session.study.records(),
        session.expectations,
    )


def keep_ending(run: RunFolder, result: Result) -> None:
    """Write down how the run ended, why its search did, and what it saved."""
    saving = None if result.saving is None else dataclasses.asdict(result.saving)
    ending = {"outcome": result.outcome, "stop_reason": result.stop_reason, "saving": saving}
    write_json(run.ending, ending)
