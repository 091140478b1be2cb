"""A training that a function of a notebook or a program makes, in place of a script."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from autotune.errors import machine_error
from autotune.facts.host import memory_kills
from autotune.process.descendants import die_with_parent
from autotune.process.files import opener
from autotune.process.limits import LaunchReport
from autotune.process.messages import ChildFolder, read_json
from autotune.process.run_folder import RunFolder
from autotune.report.run_lines import RunLines
from autotune.report.talk import say
from autotune.run.listener import Listener
from autotune.run.opening import new_folder
from autotune.script.command import without_trackers
from autotune.script.hook.sitecustomize import Hook
from autotune.script.tuning import ScriptResult, tune_script

_POLL_S = 0.1
_COMPUTES_S = 10.0
"""More than a small sum takes on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class ForkedFunction:
    """A function that returns a Trainer, or trains one, each time in a process of its own.

    Attributes:
        make_trainer: called without arguments.
    """

    make_trainer: Callable[[], Any]
    forked: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The function's name."""
        return f"{getattr(self.make_trainer, '__name__', 'make_trainer')}()"

    def start(
        self,
        folder: ChildFolder,
        environment: Mapping[str, str],
        timeout_s: float,
        gpus: Sequence[int],
        stop: Callable[[], str | None] | None,
    ) -> LaunchReport:
        """Fork, call the function with the hook, and wait until its training was looked at.

        Raises:
            MachineError: no child of this process could train.
        """
        check_forks(self.text)
        began, kills = time.monotonic(), memory_kills()
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._train(folder, environment, parent)
        timed_out, stop_reason = False, None
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        try:
            while not ended and not timed_out and stop_reason is None:
                time.sleep(_POLL_S)
                timed_out = time.monotonic() - began > timeout_s
                stop_reason = stop() if stop is not None else None
                ended, status, usage = os.wait4(pid, os.WNOHANG)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not ended:
                _, status, usage = os.wait4(pid, 0)
        return LaunchReport(
            exit_code=os.waitstatus_to_exitcode(status),
            timed_out=timed_out and not ended,
            seconds=time.monotonic() - began,
            peak_resident_bytes=usage.ru_maxrss * 1024,
            peak_gpu_bytes=None,
            lines=(),
            memory_kills=memory_kills() - kills,
            stop_reason=stop_reason,
        )

    def _train(self, folder: ChildFolder, environment: Mapping[str, str], parent: int) -> NoReturn:
        """Train in the child: its output goes to its log, and it ends when its training was looked
        at."""
        code = 1
        try:
            os.setsid()
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            log = opener(str(folder.stderr), flags)
            for stream in (1, 2):
                os.dup2(log, stream)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.environ.update({**without_trackers(folder.path), **environment})
            Hook(read_json(folder.request) or {}).install()
            trainer = self.make_trainer()
            trainers = sys.modules.get("transformers.trainer")
            if trainers is None or not isinstance(trainer, trainers.Trainer):
                what = f"it has to return a transformers Trainer, not {type(trainer).__name__}"
                raise TypeError(what)
            trainer.train()
            code = 0
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def check_forks(where: str) -> None:
    """See that what is forked from this process can compute.

    Raises:
        MachineError: it uses CUDA, or the threads in which torch computed before: a child has none
            of them, and would wait for ever.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    hint = "call it first in a new process, before anything is computed there"
    if torch.cuda.is_initialized():
        what = "this process has begun to use CUDA, so processes forked from it cannot"
        raise machine_error(what, where=where, hint=hint)
    pid = os.fork()
    if pid == 0:
        torch.ones(2**22).sum()
        os._exit(0)
    deadline = time.monotonic() + _COMPUTES_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            what = "torch has computed in this process, so processes forked from it would hang"
            raise machine_error(what, where=where, hint=hint)
        time.sleep(0.01)


def tune_trainer(
    make_trainer: Callable[[], Any],
    *,
    global_batch_size: int | None = None,
    budget: str | int | Mapping[str, Any] | None = None,
    memory: str | int | None = None,
    headroom: float = 0.1,
    fixed: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    listener: Listener | None = None,
) -> ScriptResult:
    """Find the fastest stable fields of the arguments of a Trainer that a function makes.

    The function is called in a forked process for each probe, and its Trainer trains a few steps
    there: nothing happens in this one. Of the result `fields` are what to pass to the arguments.

    Args:
        make_trainer: returns a transformers or TRL Trainer, or trains one.
        global_batch_size: rows of an optimizer step; None: what the arguments come to.
        budget: as in a job: `5m`, a number of probes, or a mapping.
        memory: that it may take, such as `20GiB`; None: what is free.
        headroom: share of it that is left free.
        fixed: knobs to pin, by their fields' names.
        out: the run folder, where a search goes on that began there; None: runs/trainer-TIME.
        listener: hears what happens; None: lines on stderr, one a probe.

    Raises:
        UserError: the function makes no Trainer, or trains more than one.
        MachineError: this process uses CUDA already, or the machine cannot do it.
    """
    limits: dict[str, Any] = {"headroom": headroom, "fixed": dict(fixed or {})}
    if budget is not None:
        limits["budget"] = budget
    if memory is not None:
        limits["devices"] = {"memory": memory}
    path = Path(out) if out is not None else new_folder("trainer")
    return tune_script(
        ForkedFunction(make_trainer=make_trainer),
        RunFolder(path=path.absolute()),
        limits,
        listener=listener or RunLines(say),
        global_batch=global_batch_size,
    )
