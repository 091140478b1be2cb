"""How a script becomes a `launch.sh`: look, search, recommend, write, verify.

The search is that of every run (`run/tuning.py`); here it is opened, by a look at the script.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from autotune.engine.local import LocalEngine
from autotune.errors import Problem, UserError
from autotune.facts import devices, stack
from autotune.job.job import Budget, as_budget
from autotune.plain_data import NONSENSE
from autotune.probe.survey import allowed_memory, memory_limit
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.run.deadline import Deadline
from autotune.run.listener import Listener
from autotune.run.opening import begin, started
from autotune.run.session import Options, Result
from autotune.run.study import study_of
from autotune.run.tuning import tuned
from autotune.script.command import ScriptCommand
from autotune.script.protocol import Look
from autotune.script.session import ScriptSession, unestimated
from autotune.script.space import changes_of, environment_of, facts_of, job_of, space_of
from autotune.script.start import look
from autotune.search.sampler.params import guided_sampler
from autotune.space.job_file.problems import explain

LOOK_S = 60.0
"""A look may take so much for each minute of a probe."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """The result of a script's search.

    Attributes:
        result: as of every run.
        look: what was seen of the script; None: it was interrupted before that.
        fields: of its arguments to set; empty: its own settings are the fastest.
        environment: variables beside them.
    """

    result: Result
    look: Look | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def tune_script(
    command: ScriptCommand,
    run: RunFolder,
    limits: Mapping[str, Any],
    *,
    listener: Listener | None = None,
    verify: bool = True,
    accept_noise: bool = False,
) -> ScriptResult:
    """Find the fastest stable fields of a script's arguments, and write what starts it with them.

    Args:
        command: starts it.
        run: where everything is kept; a search that was started there goes on.
        limits: `budget`, `headroom`, `devices` and `fixed` of a job.
        verify: whether what was written is started.
        accept_noise: whether probes count that ran while others took the cores.

    Raises:
        UserError: it cannot be tuned from outside (exit code 2).
        MachineError: the machine cannot do it (exit code 3).
    """
    follower = listener or Listener()
    options = Options(history=False, verify=verify, accept_noise=accept_noise)
    session: ScriptSession | None = None

    def opened(stack: contextlib.ExitStack) -> ScriptSession:
        nonlocal session
        session = open_script(command, run, limits, follower, stack, options)
        return session

    with run.locked():
        if not run.exists():
            begin(run, _kept(command, limits), options, file=run.script)
        result = tuned(run, opened, str(run.database))
    if session is None or result.recommendation is None:
        return ScriptResult(result=result, look=session.look if session else None)
    candidate = result.recommendation.chosen.candidate
    return ScriptResult(
        result=result,
        look=session.look,
        fields=changes_of(candidate, session.look),
        environment=environment_of(candidate),
    )


def _kept(command: ScriptCommand, limits: Mapping[str, Any]) -> str:
    """Return the text that the run's folder keeps in place of a job."""
    kept = {"words": list(command.words), "folder": str(command.folder), "limits": dict(limits)}
    return json.dumps(kept, indent=1)


def open_script(
    command: ScriptCommand,
    run: RunFolder,
    limits: Mapping[str, Any],
    listener: Listener,
    stack_of_run: contextlib.ExitStack,
    options: Options,
) -> ScriptSession:
    """Return everything that the run of a script needs, made now or as it was left."""
    with faults_of_limits("budget"):
        budget = Budget.model_validate(as_budget(limits.get("budget", {})))
    deadline = Deadline(total_s=budget.total)
    with deadline.cuts():
        seen = look_of(command, run, LOOK_S * budget.probe_minutes, listener)
    with faults_of_limits():
        job = job_of(seen, limits)
    locked = job.devices.model_copy(update={"count": seen.ways})
    stack_of_run.enter_context(devices_locked(locked, run.path, listener.waiting))
    device = devices.detect(seen.device_kind, job.devices.index, seen.ways)
    facts = facts_of(seen, device, stack.installed())
    write_json(run.facts, facts.plain())
    space = space_of(seen, job, facts)
    limit, allowed = memory_limit(job, device), allowed_memory(job, device)
    listener.surveyed(facts, space, limit)
    expectations = unestimated(seen, facts, limit)
    name, kept = started(run)
    accept_noise = options.accept_noise or kept.accept_noise
    options = dataclasses.replace(options, accept_noise=accept_noise)
    sampler = guided_sampler(space, {}, expectations.prior, allowed_bytes=allowed)
    study = study_of(run, name, space, sampler, allowed, listener.restored)
    return ScriptSession(
        job=job,
        run=run,
        facts=facts,
        space=space,
        study=study,
        engine=LocalEngine(ChildServer(run.log)),
        earlier=study.trials,
        listener=listener,
        limit_bytes=limit,
        allowed_bytes=allowed,
        expectations=expectations,
        options=options,
        deadline=deadline,
        command=command,
        look=seen,
    )


@contextlib.contextmanager
def faults_of_limits(*room: str) -> Iterator[None]:
    """Make a message of a limit that cannot be, within this block; `room`: the field it is in.

    Raises:
        UserError: there is one.
    """
    try:
        yield
    except ValidationError as error:
        explained = [explain(detail, (*room, *detail["loc"])) for detail in error.errors()]
        problems = [Problem(where="--set", what=what, hint=hint) for what, hint in explained]
        raise UserError(*problems) from None


def look_of(command: ScriptCommand, run: RunFolder, timeout_s: float, listener: Listener) -> Look:
    """Return the look at the script, now or when the search began."""
    earlier = read_json(run.survey.path / "look.json")
    if earlier is not None:
        with contextlib.suppress(*NONSENSE):
            return Look.from_plain(earlier)
    listener.remarked("a look at what it trains: it is started until its training begins ...")
    return look(command, run.survey, timeout_s)
