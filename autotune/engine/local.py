"""Calls on this machine, by the fork server of the run."""

import threading
import time
from collections.abc import Sequence

from autotune.engine.call import Call, News, Running
from autotune.probe.outcome import INTERRUPTED
from autotune.probe.survey import Machine
from autotune.process.child_server import ChildServer

ABANDON_S = 0.5
"""Seconds that children have to end before their server is ended. Chosen, not measured."""


class LocalEngine:
    """An engine whose calls are threads of this process, each with a child of the server."""

    is_remote = False
    machine: Machine | None = None

    def __init__(self, server: ChildServer, at_once: int = 1) -> None:
        self.at_once = at_once
        self._server = server
        self._changed = threading.Condition()
        self._running: dict[str, Running] = {}
        self._passed: dict[str, int] = {}

    def free_places(self) -> int:
        """Calls that would begin at once."""
        return self.at_once - len(self._running)

    def begin(self, call: Call) -> None:
        """Begin a call in a thread."""
        if call.key not in self._running:
            self._passed[call.key] = 0
            self._running[call.key] = Running(self._server, call, self._changed)

    def news(self, timeout_s: float) -> Sequence[News]:
        """Return what is new of all calls; wait for it."""
        with self._changed:
            if not (news := self._collected()):
                self._changed.wait(timeout_s)
                news = self._collected()
        return news

    def stop(self, key: str, reason: str) -> None:
        """Ask a call to end."""
        if key in self._running:
            self._running[key].stop(reason)

    def abandon(self) -> None:
        """End all calls; their server, too, where a child does not end."""
        running, until = list(self._running.values()), time.monotonic() + ABANDON_S
        for call in running:
            call.stop(INTERRUPTED)
        if any(not call.join(max(until - time.monotonic(), 0.0)) for call in running):
            self._server.close()
        self._running.clear()

    def in_flight(self) -> Sequence[Call]:
        """Return the calls at work; none outlives its run."""
        return [running.call for running in self._running.values()]

    def _collected(self) -> list[News]:
        news: list[News] = []
        for key, running in list(self._running.items()):
            news += [(key, event) for event in running.events[self._passed[key] :]]
            self._passed[key] = len(running.events)
            if running.ended is not None:
                news.append((key, running.ended))
                del self._running[key]
        return news
