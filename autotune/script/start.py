"""One start of a script, from the parent's side: a look at what it trains, or a probe; wait, and
name what happened."""

import dataclasses
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, user_error
from autotune.facts import devices
from autotune.plain_data import NONSENSE
from autotune.probe.measure import busy_measurement
from autotune.probe.outcome import (
    NEAR_LIMIT,
    cut_short,
    disturbed,
    is_by_another,
    measurement_of_reply,
    of_both,
    stopped_measurement,
)
from autotune.probe.protocol import Measurement
from autotune.probe.rank_replies import clear_ranks, merged_reply, rank_folder
from autotune.process.child_server import ChildServer
from autotune.process.limits import LaunchReport, Watcher, signal_name
from autotune.process.messages import ChildFolder, Message, read_json, write_json
from autotune.process.progress import ProgressReader
from autotune.script.command import ScriptCommand, write_request
from autotune.script.protocol import LOOK, PROBE, Look
from autotune.units import format_bytes

MEMORY = ("oom", "host_oom")
LAST_LINES = 4
"""Of what a script said that failed."""
ONE_TRAINING = "name a script that trains once: of several, each could be tuned by itself"


# -- a look


def look(command: ScriptCommand, folder: ChildFolder, timeout_s: float) -> Look:
    """Start a script until its training begins, and say what that is.

    Raises:
        UserError: it does not train by a transformers Trainer, trains more than once, or fails.
    """
    write_request(folder, LOOK, fields={})
    report = command.start(folder, {}, timeout_s, (), None)
    data = read_json(folder.path / "look.json")
    if data is None:
        raise _without_training(command, folder, report, timeout_s)
    try:
        seen = Look.from_plain(data)
    except NONSENSE as error:
        raise user_error(
            f"the look at it returned invalid data: {error}", where=command.text
        ) from None
    if seen.again:
        places = ", ".join(seen.again)
        what = f"it trains more than once (again at {places}), and a search measures one training"
        raise user_error(what, where=command.text, hint=ONE_TRAINING)
    return seen


def _without_training(
    command: ScriptCommand, folder: ChildFolder, report: LaunchReport, timeout_s: float
) -> AutotuneError:
    log = folder.stderr
    if report.timed_out:
        what = f"its training did not begin within {timeout_s:.0f} s"
        hint = f"give it more time by `--set budget.probe_minutes=N`; its log is {log}"
        return user_error(what, where=command.text, hint=hint)
    if report.exit_code != 0:
        ending = f"it ended with exit code {report.exit_code} before it trained"
        return user_error(f"{ending}: {last_lines(log)}", where=command.text, hint=f"see {log}")
    what = (
        "it ended without `train()` of a transformers Trainer: a loop of its own cannot be tuned "
        "from outside"
    )
    hint = (
        "train by a Trainer, or describe the training as a job (`autotune init`); where it does "
        "train by one, see that Python was not started with -I, -E or -S"
    )
    return user_error(what, where=command.text, hint=hint)


def last_lines(log: Path) -> str:
    """Return the end of what a script said, in one line; of a traceback what it says, not where."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    unindented = [
        line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))
    ]
    return " | ".join(unindented[-LAST_LINES:])[-1500:]


# -- a probe


@dataclass(frozen=True, kw_only=True)
class StartTask(Message):
    """A start of a script as whatever runs it is asked for it.

    Attributes:
        fields: of its arguments to set; `expected`: those that it is to have.
        processes: ranks, each of which replies.
        device: of several GPUs the first.
        limit_bytes: memory of each process.
        own_s: its own limit of time; `most_s`: seconds that are left for it, None: any.
        timed: whether it is `busy` where others took the cores.
    """

    command: ScriptCommand
    fields: dict[str, Any]
    expected: dict[str, Any]
    accumulation: int
    processes: int
    device: devices.DeviceFacts
    environment: dict[str, str]
    limit_bytes: int
    to_beat: float | None
    own_s: float
    most_s: float | None
    timed: bool


def started(
    server: ChildServer, folder: ChildFolder, plain: Any, watch: Watcher | None = None
) -> Measurement:
    """Start a script as a `StartTask`, as plain data, says; once more where another process ended
    it."""
    task = StartTask.from_plain(plain)
    most_s = math.inf if task.most_s is None else task.most_s
    measurement = _started_once(server, folder, task, most_s, watch)
    if is_by_another(measurement) and most_s > measurement.seconds:
        again = _started_once(server, folder, task, most_s - measurement.seconds, watch)
        measurement = of_both(measurement, again)
    return measurement


def _started_once(
    server: ChildServer, folder: ChildFolder, task: StartTask, most_s: float, watch: Watcher | None
) -> Measurement:
    gpus = (task.device.index, *task.device.peers) if task.device.kind == "cuda" else ()
    busy = busy_measurement(gpus)
    if busy is not None:
        return busy
    write_request(
        folder,
        PROBE,
        fields=task.fields,
        expected=task.expected,
        accumulation=task.accumulation,
        memory_limit_bytes=task.limit_bytes,
        to_beat_tokens_per_s=task.to_beat,
    )
    clear_ranks(folder.path)
    folder.progress.unlink(missing_ok=True)
    timeout_s, stop = max(min(task.own_s, most_s), 0.0), _stop(server, folder, watch)
    report = task.command.start(folder, task.environment, timeout_s, gpus, stop)
    shutil.rmtree(folder.path / "scratch", ignore_errors=True)
    measurement = _named(folder, report, task.processes, task.device.kind, task.limit_bytes)
    measurement = disturbed(measurement) if task.timed else measurement
    measurement = dataclasses.replace(measurement, seconds=round(report.seconds, 4))
    write_json(folder.measurement, measurement.plain())
    return cut_short(measurement, task.own_s, most_s)


def _stop(
    server: ChildServer, folder: ChildFolder, watch: Watcher | None
) -> Callable[[], str | None]:
    reader = ProgressReader(folder.progress)

    def stop() -> str | None:
        reasons = (watch(event) for event in reader.new_events()) if watch is not None else ()
        found = next((reason for reason in reasons if reason is not None), None)
        return found or server.stop_reason(folder)

    return stop


def _named(
    folder: ChildFolder, report: LaunchReport, processes: int, kind: str, limit_bytes: int
) -> Measurement:
    replies = [read_json(rank_folder(folder.path, rank).reply) for rank in range(processes)]
    received = [reply for reply in replies if isinstance(reply, dict)]
    failed = [reply for reply in received if reply.get("failure")]
    if failed:
        first = next((reply for reply in failed if reply.get("outcome") in MEMORY), failed[0])
        measurement = measurement_of_reply(first)
        if processes == 1:
            return measurement
        rank = replies.index(first)
        reason = f"rank {rank} of {processes}: {measurement.reason}"
        return dataclasses.replace(measurement, failed_rank=rank, reason=reason)
    if report.stop_reason is not None:
        events = ProgressReader(folder.progress).new_events()
        return stopped_measurement(report.stop_reason, events)
    if report.timed_out:
        reason = f"still running after {report.seconds:.0f} s"
        return Measurement(outcome="timeout", reason=reason)
    if len(received) == processes:
        return measurement_of_reply(received[0] if processes == 1 else merged_reply(received))
    return _silent(folder.path, report, kind, limit_bytes)


def _silent(path: Path, report: LaunchReport, kind: str, limit_bytes: int) -> Measurement:
    """Return a start that ended without the reply of every rank."""
    full = kind == "cpu" and report.peak_resident_bytes >= NEAR_LIMIT * limit_bytes
    if report.memory_kills or (full and report.exit_code != 0):
        who = "the kernel, which ran out of memory, ended it" if report.memory_kills else "it died"
        held = format_bytes(report.peak_resident_bytes)
        return Measurement(
            outcome="host_oom" if kind == "cuda" else "oom",
            reason=f"{who}, holding {held}",
            memory_limit_bytes=limit_bytes,
            inferred=True,
        )
    if report.foreign_signal is not None:
        reason = f"another process ended it by {signal_name(report.foreign_signal)}"
        return Measurement(outcome="interrupted", reason=reason, inferred=True)
    log_end = last_lines(path / "stderr.log")
    return Measurement(
        outcome="crash",
        reason=f"ended with exit code {report.exit_code} and no reply: {log_end}"[:1500],
    )
