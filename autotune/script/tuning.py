"""How a script becomes a `launch.sh`: look, search, recommend, write, verify.

The search is the loop of every run (`run/loop.py`); its probes are starts of the script.
"""

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from autotune.run.conclusion import interrupted, searched_result
from autotune.run.deadline import Deadline, OutOfTime
from autotune.run.loop import search, settle
from autotune.run.nothing_measured import before_the_search
from autotune.run.session import Listener, Result
from autotune.script.command import Starter
from autotune.script.conclusion import emitted, saving, without
from autotune.script.opening import begin, opened
from autotune.script.protocol import Look
from autotune.script.session import ScriptSession
from autotune.script.space import changes_of, environment_of
from autotune.search.recommend import NothingFits, recommend
from autotune.search.storage import faults_of_storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """What the search of a script came to.

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
    starter: Starter,
    run: RunFolder,
    limits: Mapping[str, Any],
    *,
    listener: Listener | None = None,
    verify: bool = True,
    global_batch: int | None = None,
) -> ScriptResult:
    """Find the fastest stable fields of a script's arguments, and write what starts it with them.

    Args:
        starter: starts it; of a command `launch.sh` is written.
        run: where everything is kept; a search that was started there goes on.
        limits: `budget`, `headroom`, `devices` and `fixed` of a job.
        verify: whether what was written is started.
        global_batch: rows of an optimizer step; None: what the script's arguments come to.

    Raises:
        UserError: it cannot be tuned from outside (exit code 2).
        MachineError: the machine cannot do it (exit code 3).
    """
    heard = listener or Listener()
    began = time.monotonic()
    with run.locked(), contextlib.ExitStack() as locks, faults_of_storage(str(run.database)):
        if not run.exists():
            begin(starter, run, limits, global_batch)
        run.ending.unlink(missing_ok=True)
        session: ScriptSession | None = None
        try:
            session = opened(starter, run, limits, heard, locks, verify, global_batch)
            found = searched(session)
        except KeyboardInterrupt:
            found = ScriptResult(result=interrupted(session))
        except OutOfTime:
            found = ScriptResult(result=before_the_search(Deadline()))
        ending = {"outcome": found.result.outcome, "stop_reason": found.result.stop_reason}
        write_json(run.ending, {**ending, "saving": None})
    seconds = round(time.monotonic() - began, 3)
    return dataclasses.replace(found, result=dataclasses.replace(found.result, seconds=seconds))


def searched(session: ScriptSession) -> ScriptResult:
    """Search, measure the fastest again until their order is certain, and conclude."""
    reason = search(session)
    session.listener.stopped(reason)
    while not settle(session):
        reason = search(session)
        session.listener.stopped(reason)
    first = recommend(session.study.records(), session.allowed_bytes)
    if isinstance(first, NothingFits):
        return ScriptResult(result=without(session, first, reason), look=session.look)
    chosen, verification = emitted(session, first)
    candidate = chosen.chosen.candidate
    result = dataclasses.replace(
        searched_result(session, "recommended", reason),
        space=session.space,
        devices=session.look.ways,
        recommendation=chosen,
        verification=verification,
        saving=saving(session, chosen),
    )
    return ScriptResult(
        result=result,
        look=session.look,
        fields=changes_of(candidate, session.look),
        environment=environment_of(candidate),
    )
