"""The check of a launch: the rules, and what the installed stack refuses, asked in a child."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.bundle.check.files import LaunchFiles
from autotune.bundle.check.rules import condition, disagreements
from autotune.errors import MachineError, Problem, in_one_line
from autotune.facts.stack import missing, training_fields
from autotune.job.methods import METHODS
from autotune.plain_data import NONSENSE, from_plain, to_plain
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import ending_of

WORKER = "autotune.bundle.check.launch_worker:ask"
LIMITS = Limits(wall_s=120.0, stall_s=60.0)
MOST = 500
"""Characters of what is wrong with a field: a message may repeat all of a file."""
COUNTS = (1, 2, 4, 8)
"""Numbers of processes that are tried where nobody says how many there are."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The files of a launch, each as JSON text; None: there is none.

    Attributes:
        method: whose class of arguments reads the trainer's file.
        names_are_trls: whether TRL's own script reads it, which refuses other names.
        processes: numbers of processes that may train, tried in this order.
        count_is_given: whether a flag of the launcher says it.
    """

    trainer: str
    accelerate: str | None
    deepspeed: str | None
    method: str
    names_are_trls: bool
    processes: tuple[int, ...]
    count_is_given: bool


@dataclass(frozen=True)
class Refusal:
    """A refusal of a launch: the file (trainer, accelerate or deepspeed), the field in it (empty:
    the whole file), what is wrong, and what to do."""

    file: str
    field: str
    what: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchReply:
    """All refusals of a launch on a number of processes, and why not all of it was asked (empty: it
    was)."""

    processes: int
    refusals: tuple[Refusal, ...] = ()
    unasked: str = ""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """All that is wrong with the files of a launch.

    Attributes:
        conditions: on which they agree.
        unasked: why the installed stack was not asked; empty: it was.
    """

    problems: tuple[Problem, ...]
    conditions: tuple[str, ...] = ()
    unasked: str = ""


def check_launch(
    files: LaunchFiles, ask: Callable[[LaunchRequest], LaunchReply] | None = None
) -> Checked:
    """Return all that is wrong with the files of a launch, before anything runs.

    Args:
        ask: asks the installed stack; by default a child of its own.
    """
    known = condition(files)
    counts = COUNTS if files.alone and files.count is None else (files.processes,)
    counts = counts if known is None else (known[0],)
    request = _request(files, counts)
    if (reason := missing(request.method)) is not None:
        return rules_alone(files, reason)
    try:
        reply = (ask or _ask)(request)
    except MachineError as error:
        return rules_alone(files, in_one_line(str(error)))
    found = rules_alone(files, reply.unasked)
    said = {problem.where for problem in found.problems}
    told = (files.at(r.file, r.field, in_one_line(r.what)[:MOST], r.hint) for r in reply.refusals)
    new = tuple(problem for problem in told if problem.where not in said)
    refused = ", ".join(map(str, counts[: counts.index(reply.processes)]))
    more = (f"{reply.processes} processes; {refused} would be refused",) if refused else ()
    return replace(found, problems=found.problems + new, conditions=found.conditions + more)


def rules_alone(files: LaunchFiles, unasked: str) -> Checked:
    """Return what the rules say, and why nobody else was asked."""
    known = condition(files)
    conditions = () if known is None else (known[1],)
    return Checked(problems=disagreements(files), conditions=conditions, unasked=unasked)


def _request(files: LaunchFiles, counts: tuple[int, ...]) -> LaunchRequest:
    own = files.method
    reads = own.name if own else max(METHODS, key=lambda name: _fields_read(name, files.trainer))
    return LaunchRequest(
        trainer=_text(files.trainer),
        accelerate=None if files.alone else _text(files.accelerate),
        deepspeed=None if files.deepspeed is None else _text(files.deepspeed),
        method=reads,
        names_are_trls=own is not None and files.trainer_file == own.config_file,
        processes=counts,
        count_is_given=files.devices is not None,
    )


def _fields_read(method: str, trainer: Mapping[str, Any]) -> int:
    """Return how many fields of a trainer's file a method's class has."""
    return len(set(training_fields(method)) & set(trainer))


def _text(data: Mapping[str, Any]) -> str:
    """Return a file as JSON; what JSON lacks (a date) is text."""
    return json.dumps(data, default=str, skipkeys=True)


def _ask(request: LaunchRequest) -> LaunchReply:
    """Return what the installed stack says.

    Raises:
        MachineError: it cannot be imported, or does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-check-") as scratch:
        folder = ChildFolder(path=Path(scratch) / "child")
        folder.path.mkdir()
        write_json(folder.request, to_plain(request))
        with ChildServer(Path(scratch) / "server.log", (WORKER.partition(":")[0],)) as server:
            ending = server.run(folder, WORKER, LIMITS)
        try:
            return from_plain(LaunchReply, read_json(folder.reply))
        except NONSENSE:
            what = f"the child ended without an answer{ending_of(folder.stderr)}"
            if ending.why in ("wall", "stall"):
                what = f"it gave no answer in {LIMITS.wall_s:g} s"
            raise MachineError(Problem(where="", what=what)) from None
