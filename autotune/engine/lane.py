"""What Ray runs on a node for a run: its calls, by a fork server that stays.

    driver (autotune run)                       a node
    RayEngine ---- follow / stop ----> Lane (an actor) -- pipe --> fork server --> a probe's child

A lane is detached, named by its run, and tells every event of its call again to whoever asks: the
driver may die and come back. When nobody has asked for a while it removes itself. The fork server
is a fresh program, not a fork of Ray's worker, and ends when the worker does, whatever ends that.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util import get_current_placement_group, remove_placement_group

from autotune.engine.call import Call, Running
from autotune.job.job import Devices
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.limits import Watcher


class Lane:
    """An actor that runs one call at a time, and keeps it with its events until the next begins.

    Args:
        name: its own.
        folder: of the run, for the log of its fork server.
        kind, count: of its devices.
        preload: what its fork server imports.
        abandoned_s: seconds without a question after which it removes itself.
    """

    def __init__(
        self, name: str, folder: str, kind: str, count: int, preload: list[str], abandoned_s: float
    ) -> None:
        # Ray's settings, its token among them, are not for what a user trains; the last one would
        # give a launch one thread.
        ours = [name for name in os.environ if name.startswith("RAY_")]
        for variable in (*ours, "OMP_NUM_THREADS"):
            os.environ.pop(variable, None)
        with contextlib.suppress(OSError):  # Ray lets its workers stand back; launches do not
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._folder = Path(folder)
        self._devices = Devices(kind="cuda" if kind == "cuda" else "cpu", count=count)
        self._server = ChildServer(self._folder / f"server-{name}.log", tuple(preload))
        self._server.begin()
        self._news = threading.Condition()
        self._running: Running | None = None
        self._known: set[str] = set()
        self._locks = contextlib.ExitStack()
        self._is_locked = False
        self._asked_at, self._abandoned_s = time.monotonic(), abandoned_s
        threading.Thread(target=self._end_when_abandoned, daemon=True).start()

    def state(self) -> dict[str, Any]:
        """Return the node that it is on, and its call; for a driver that comes back."""
        self._asked_at = time.monotonic()
        call = None if self._running is None else self._running.call.plain()
        return {"node": ray.get_runtime_context().get_node_id(), "call": call}

    def follow(self, plain: dict[str, Any], since: int, wait_s: float) -> tuple[list[Any], Any]:
        """Begin a call, unless it is known; return its events from `since` on, and its end or None.
        Wait for news, `wait_s` seconds at most."""
        self._asked_at = time.monotonic() + wait_s
        call = Call.from_plain(plain)
        with self._news:
            if call.key not in self._known:
                self._known.add(call.key)
                self._running = Running(self._server, call, self._news, self._lock)
            running = self._running
            if running is None or running.call.key != call.key:  # a question that came late
                return [], None
            self._news.wait_for(lambda: len(running.events) > since or running.ended, wait_s)
            ended = None if running.ended is None else running.ended.plain()
            return running.events[since:], ended

    def stop(self, key: str, reason: str) -> None:
        """Ask a call to end."""
        if self._running is not None and self._running.call.key == key:
            self._running.stop(reason)

    def end(self) -> None:
        """End the fork server and its children; their devices are for others."""
        self._server.close()
        self._locks.close()

    def _lock(self, watch: Watcher) -> None:
        """Take the locks of its devices, once; an event tells who has them."""

        def waits(holder: str) -> None:
            watch({"event": "waiting", "holder": holder})

        if not self._is_locked:
            self._locks.enter_context(devices_locked(self._devices, self._folder, waits))
            self._is_locked = True

    def _end_when_abandoned(self) -> None:
        while time.monotonic() - self._asked_at < self._abandoned_s:
            time.sleep(min(1.0, self._abandoned_s / 4))
        self.end()
        remove_placement_group(get_current_placement_group())  # and this actor with it
