"""What Ray runs on a node for a run: its calls, or its part of them, by a fork server that stays.

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
from autotune.probe.extensions import COMPILED
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.limits import Watcher

FIRST_PART = 0.2
"""The part of `abandoned_s` for the first question: a living driver asks at once."""


class Lane:
    """An actor that runs one call at a time, and keeps it with its events until the next begins.

    Args:
        name: its own.
        folder: of the run, for the log of its fork server.
        kind, count: of its devices.
        spans: whether other nodes have a part of its calls.
        preload: what its fork server imports.
        abandoned_s: seconds without a question after which it removes itself.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        kind: str,
        count: int,
        spans: bool,
        preload: list[str],
        abandoned_s: float,
    ) -> None:
        # Ray's settings, its token among them, are not for what a user trains; the last one would
        # give a launch one thread.
        ours = [name for name in os.environ if name.startswith("RAY_")]
        for variable in (*ours, "OMP_NUM_THREADS"):
            os.environ.pop(variable, None)
        with contextlib.suppress(OSError):  # Ray lets its workers stand back; launches do not
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        if spans and (interface := interface_of(ray.util.get_node_ip_address())):
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, interface)
        self._folder = Path(folder)
        os.environ[COMPILED] = str(self._folder / "compiled" / name)
        self._devices = Devices(kind="cuda" if kind == "cuda" else "cpu", count=count)
        self._server = ChildServer(self._folder / f"server-{name}.log", tuple(preload))
        self._server.begin()
        self._changed = threading.Condition()
        self._running: Running | None = None
        self._known: set[tuple[str, str]] = set()
        self._asked_at = time.monotonic() - (1 - FIRST_PART) * abandoned_s
        self._abandoned_s = abandoned_s
        threading.Thread(target=self._end_when_abandoned, daemon=True).start()

    def state(self) -> dict[str, Any]:
        """Return the node that it is on, its address, and its call, for a driver that comes
        back."""
        self._asked_at = time.monotonic()
        call = None if self._running is None else self._running.call.plain()
        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return {"node": node, "address": address, "call": call}

    def follow(self, plain: dict[str, Any], since: int, wait_s: float) -> tuple[list[Any], Any]:
        """Begin a call, unless it is known; return its events from `since` on, and its end or None.
        Wait for news, `wait_s` seconds at most."""
        self._asked_at = time.monotonic() + wait_s
        call = Call.from_plain(plain)
        asked = (call.key, call.folder)  # the same key again is a second try
        with self._changed:
            if asked not in self._known:
                self._known.add(asked)
                self._running = Running(self._server, call, self._changed, self._locked)
            running = self._running
            if running is None or asked != (running.call.key, running.call.folder):  # came late
                return [], None
            self._changed.wait_for(lambda: len(running.events) > since or running.ended, wait_s)
            ended = None if running.ended is None else running.ended.plain()
            return running.events[since:], ended

    def stop(self, key: str, reason: str, after_s: float = 0.0) -> None:
        """Ask a call to end, unless it has by then."""
        running = self._running
        time.sleep(after_s)
        if running is not None and running is self._running and running.call.key == key:
            running.stop(reason)

    def _locked(self, watch: Watcher) -> contextlib.AbstractContextManager[None]:
        """Hold the locks of its devices for a call; an event tells who has them."""

        def waits(holder: str) -> None:
            watch({"event": "waiting", "holder": holder})

        return devices_locked(self._devices, self._folder, waits)

    def _end_when_abandoned(self) -> None:
        while time.monotonic() - self._asked_at < self._abandoned_s:
            time.sleep(min(1.0, self._abandoned_s / 4))
        self._server.close()
        remove_placement_group(get_current_placement_group())  # and this actor with it


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address of this machine; None: none is known to.
    Gloo else takes what the host's name resolves to: 127.0.1.1 on many machines."""
    import psutil  # the stack has it

    if address.startswith("127."):
        return "lo"
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, has in interfaces if address in [one.address for one in has]), None)
