"""How the search of a script begins, or goes on where it was."""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from autotune import __version__
from autotune.errors import Problem, UserError
from autotune.estimate.estimate import prior_residual
from autotune.facts import devices, stack
from autotune.job.job import Budget, as_budget
from autotune.plan.candidates import TYPICAL_PROCESS
from autotune.probe.survey import allowed_memory, memory_limit
from autotune.process.device_lock import devices_locked
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.run.deadline import Deadline
from autotune.run.expectations import Expectations
from autotune.run.opening import Options, recover
from autotune.run.rebuilt_study import rebuild, set_aside
from autotune.run.session import Listener
from autotune.script.command import ScriptCommand, Starter
from autotune.script.looking import look
from autotune.script.protocol import Look
from autotune.script.session import ScriptSession
from autotune.script.space import facts_of, job_of, space_of
from autotune.search.sampler.params import guided_sampler
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.job_file.problems import explain
from autotune.value_types import NONSENSE, checked

LOOK_S = 60.0
"""A look may take so much for each minute of a probe."""


def begin(
    starter: Starter, run: RunFolder, limits: Mapping[str, Any], global_batch: int | None
) -> None:
    """Start a search in a folder that is new or empty.

    Args:
        global_batch: rows of an optimizer step; None: what the script's arguments come to.

    Raises:
        UserError: something is there already.
    """
    info = {
        "schema": 1,
        "version": __version__,
        "study": f"autotune-{uuid.uuid4().hex[:12]}",
        "own_storage": True,
        "options": {},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    words = list(starter.words) if isinstance(starter, ScriptCommand) else []
    folder = str(starter.folder) if isinstance(starter, ScriptCommand) else ""
    kept = {"words": words, "folder": folder, "limits": dict(limits), "global_batch": global_batch}
    run.begin(json.dumps(kept, indent=1), info, run.script)


def opened(
    starter: Starter,
    run: RunFolder,
    limits: Mapping[str, Any],
    listener: Listener,
    locks: contextlib.ExitStack,
    verify: bool,
    global_batch: int | None,
) -> ScriptSession:
    """Return everything that a search needs, made now or as it was left."""
    budget = checked_budget(limits)
    deadline = Deadline(total_s=budget.total)
    with deadline.cuts():
        seen = look_of(starter, run, LOOK_S * budget.probe_minutes, listener)
    with faults_of_limits():
        job = job_of(seen, limits, global_batch)
    locks.enter_context(
        devices_locked(
            job.devices.model_copy(update={"count": seen.ways}), run.path, listener.waiting
        )
    )
    device = devices.detect(seen.device_kind, job.devices.index, seen.ways)
    facts = facts_of(seen, device, stack.installed())
    write_json(run.facts, facts.plain())
    space = space_of(seen, job, facts)
    limit, allowed = memory_limit(job, device), allowed_memory(job, device)
    listener.surveyed(facts, space, limit)
    prior = prior_residual(device, TYPICAL_PROCESS, seen.ways)
    session = ScriptSession(
        job=job,
        run=run,
        facts=facts,
        space=space,
        study=study_of(run, space, prior, allowed, listener),
        listener=listener,
        limit_bytes=limit,
        allowed_bytes=allowed,
        expectations=Expectations(estimates={}, prior=prior, limit_bytes=limit),
        options=Options(history=False, verify=verify),
        deadline=deadline,
        starter=starter,
        look=seen,
    )
    recover(session.study, run)
    return session


def checked_budget(limits: Mapping[str, Any]) -> Budget:
    """Return the budget of a search.

    Raises:
        UserError: it is none.
    """
    with faults_of_limits("budget"):
        return Budget.model_validate(as_budget(limits.get("budget", {})))


@contextlib.contextmanager
def faults_of_limits(*room: str) -> Iterator[None]:
    """Within this block a limit that cannot be is a message; `room`: the field it is in.

    Raises:
        UserError: so it is.
    """
    try:
        yield
    except ValidationError as error:
        explained = [explain(detail, (*room, *detail["loc"])) for detail in error.errors()]
        problems = [Problem(where="--set", what=what, hint=hint) for what, hint in explained]
        raise UserError(*problems) from None


def look_of(starter: Starter, run: RunFolder, timeout_s: float, listener: Listener) -> Look:
    """Return what is seen of the script, now or when the search began."""
    earlier = read_json(run.survey.path / "look.json")
    if earlier is not None:
        with contextlib.suppress(*NONSENSE):
            return checked(Look.from_plain(earlier), Look)
    listener.remarked("a look at what it trains: it is started until its training begins ...")
    return look(starter, run.survey, timeout_s)


def study_of(
    run: RunFolder, space: SearchSpace, prior: Any, allowed: int, listener: Listener
) -> Study:
    """Return the study of a search; one that is gone is made anew of what its probes left."""
    name = str(run.read(run.run).get("study"))
    fault = set_aside(run, name)
    sampler = guided_sampler(space, {}, prior, allowed_bytes=allowed)
    study = Study(space, run.database, name, allowed_bytes=allowed, sampler=sampler)
    if probes := rebuild(study, space, run):
        listener.restored(probes, fault or "it lacks probes of this run")
    return study
