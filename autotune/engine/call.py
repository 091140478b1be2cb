"""The seam between a run and whatever runs its probes.

A run begins calls, hears of them, and may stop them. A call names a function by text, and what it
is given is plain data: it is the same here and on another machine. The function is called where the
devices are, so that what is seen of a GPU, a disk or a kill by the kernel is seen there.
"""

import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.errors import AutotuneError, MachineError, Problem, UserError
from autotune.plain_data import to_plain
from autotune.probe.protocol import Measurement
from autotune.probe.survey import Machine
from autotune.process.child_server import ChildServer
from autotune.process.limits import Watcher
from autotune.process.messages import ChildFolder, Message

PROBE = "autotune.probe.measure:probed"


@dataclass(frozen=True, kw_only=True)
class Call(Message):
    """One call; said twice it is one.

    Attributes:
        key: tells it from the others of its run.
        folder: of its files.
        task: `module:function`, called with a fork server, the folder, the request and a watcher of
            events; what it returns is the call's result. Where several machines have a part each,
            `part` of the request says which.
        together: `module:function` that returns one result for the parts' results and the folder.
        alone: whether it shares the memory, the disks or the cores of its machine with no other.
    """

    key: str
    folder: str
    request: dict[str, Any]
    task: str = PROBE
    together: str = "autotune.probe.rank_replies:merged_measurement"
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Ended(Message):
    """The end of a call: its result as plain data, or the problems that end the run."""

    result: dict[str, Any] | None = None
    problems: tuple[Problem, ...] = ()
    by_user: bool = False

    def measurement(self) -> Measurement:
        """Return the result of a probe.

        Raises:
            MachineError: the machine could not do it.
            UserError: what the user set cannot be.
        """
        if self.result is None:
            raise (UserError if self.by_user else MachineError)(*self.problems)
        return Measurement.from_plain(self.result)


News = tuple[str, dict[str, Any] | Ended]
"""The key of a call, and an event of it or its end."""


class Engine(Protocol):
    """An engine, as a run sees it.

    Attributes:
        at_once: how many calls a run may have in flight.
        is_remote: whether calls run on machines that this process is not on.
    """

    at_once: int
    is_remote: bool

    @property
    def machine(self) -> Machine | None:
        """The machine that runs calls; None: this one."""

    def free_places(self) -> int:
        """Calls that would begin at once; 1 where there are none in flight."""

    def begin(self, call: Call) -> None:
        """Begin a call, and return at once."""

    def news(self, timeout_s: float) -> Sequence[News]:
        """Return what is new of all calls; wait for it.

        Raises:
            MachineError: there is nothing left that could run them.
        """

    def stop(self, key: str, reason: str) -> None:
        """Ask a call to end; its end is heard of."""

    def abandon(self) -> None:
        """End all calls now; nothing more is heard of them."""

    def in_flight(self) -> Sequence[Call]:
        """Return the calls at work, also those that an earlier process of the run began."""


def result_of(engine: Engine, call: Call, watch: Watcher | None = None) -> Ended:
    """Begin a call, and wait until it has ended; no other is in flight meanwhile.

    Args:
        watch: sees its events, and may end it.
    """
    engine.begin(call)
    try:
        while True:
            for key, event in engine.news(1.0):
                if key != call.key:  # an earlier process of the run began it
                    continue
                if isinstance(event, Ended):
                    return event
                if watch is not None and (reason := watch(event)) is not None:
                    engine.stop(call.key, reason)
    except BaseException:
        engine.abandon()
        raise


def named(text: str) -> Any:
    """Return what `module:function` names."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


class Running:
    """A call at work in a thread, where its devices are. Its events and its end are kept for
    whoever asks.

    Args:
        changed: is notified of each event.
        around: makes what it runs in, of a watcher of events.
    """

    def __init__(
        self,
        server: ChildServer,
        call: Call,
        changed: threading.Condition,
        around: Callable[[Watcher], AbstractContextManager[None]] = lambda watch: nullcontext(),
    ) -> None:
        self.call = call
        self.events: list[dict[str, Any]] = []
        self.ended: Ended | None = None
        self._server, self._changed, self._around = server, changed, around
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, reason: str) -> None:
        """Ask it to end, unless it has."""
        with self._changed:
            if self.ended is None:
                self._reason = reason
                self._server.stop(ChildFolder(path=Path(self.call.folder)), reason)

    def join(self, timeout_s: float) -> bool:
        """Wait until its thread has ended; True if it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        folder = ChildFolder(path=Path(self.call.folder))
        try:
            with self._around(self._hear):
                result = named(self.call.task)(self._server, folder, self.call.request, self._hear)
            ended = Ended(result=to_plain(result))
        except AutotuneError as error:
            ended = Ended(problems=error.problems, by_user=isinstance(error, UserError))
        except Exception as error:  # of ours or of the machine: it ends the run, and is named
            what = f"{type(error).__name__}: {error}"
            ended = Ended(problems=(Problem(where=self.call.folder, what=what),))
        with self._changed:
            self._server.clear_stop(folder)
            self.ended = ended
            self._changed.notify_all()

    def _hear(self, event: dict[str, Any]) -> str | None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        return self._reason
