"""A worker: its folder, its places for runs, and its loop, which sends the events of running
commands and takes new works."""

import contextlib
import fcntl
import json
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.engine.opening import EngineOptions, devices_on_ray
from autotune.errors import EXIT_MACHINE, AutotuneError, user_error
from autotune.facts import devices
from autotune.server.private_folder import private_folder
from autotune.server.store.values import Ending, Kind, WorkerInfo
from autotune.server.worker.door import Away, Door, Lost, Refused
from autotune.server.worker.task import Task

LOOK_S = 0.25
BEAT_S = 1.0
LEASE_S = 1.0
KEPT_S = 60.0
"""Interval of asking which folders to delete."""
LEAVE_S = 0.5
"""Patience with each answer of the service when it is to end."""
log = logging.getLogger("autotune.worker")


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The load that a worker takes.

    Attributes:
        runs: devices for runs (on Ray all GPUs, or nodes without; else 1); 0: it takes none.
        plans: the number of plans beside that.
        plan_memory: bytes for all processes of one.
        folders: bytes of all folders together; beyond it, the oldest ended ones are deleted.
    """

    runs: int
    plans: int
    plan_memory: int
    folders: int


@dataclass
class WorkerLoop:
    """The loop of a worker, and a thread beside it that watches commands and keeps their leases,
    whatever takes the loop long.

    Attributes:
        beats: another connection, of that thread.
        engine: of runs.
    """

    info: WorkerInfo
    door: Door
    beats: Door
    root: Path
    capacity: Capacity
    engine: EngineOptions
    _tasks: dict[str, Task] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)
    _next: dict[str, float] = field(default_factory=dict)
    _answers: bool = True

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C, or until its folder is gone; running works are then ended,
        and return to the queue.

        Raises:
            MachineError: the service does not take this worker.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        threading.Thread(target=self._keep_leases, name="leases", daemon=True).start()
        try:
            while self.root.is_dir():
                self._turn()
                time.sleep(LOOK_S)
            _log("ends", why=f"{self.root} is gone")
        except KeyboardInterrupt:
            _log("ends", why="it was asked to")
        finally:
            self._leave()

    def _turn(self) -> None:
        try:
            self._tell()
            if self._is_time("kept", KEPT_S):
                self._forget()
            if self._is_time("lease", LEASE_S):
                self._take()
                self._say(True, "")
        except Away as away:
            self._say(False, str(away))
        except OSError as error:  # such as a folder that goes while it is counted
            _log("a look at the folders failed", why=str(error))

    def _keep_leases(self) -> None:
        while not self._ending.wait(LOOK_S):
            try:
                for task in list(self._tasks.values()):
                    task.look()
                if self._is_time("beat", BEAT_S):
                    self._beat()
            except (Away, AutotuneError):
                pass  # the loop, which asks for works every second, says so
            except Exception:
                log.exception("a look at the works failed")

    def _beat(self) -> None:
        doing = [id for id, task in list(self._tasks.items()) if not task.is_reported]
        if not doing:
            return
        for beat in self.beats.beat(self.info.name, doing, [])[0]:
            task = self._tasks.get(beat.id)
            if task is None or task.is_reported:
                continue
            if beat.lost:
                task.lose()
            elif beat.stop:
                task.cancel()

    def _tell(self) -> None:
        """Send new events, and the ends of works."""
        for id, task in list(self._tasks.items()):
            ended = task.has_ended
            try:
                if task.lost:
                    raise Lost
                task.send(self.door, self.info.name)
                if ended and task.finish(self.door, self.info.name):
                    self._drop(id, "ended")
            except Lost:
                task.end()
                self._drop(id, "is another's now")
            except (Refused, OSError, ValueError) as error:  # it ends; the others go on
                refused = isinstance(error, Refused)
                why = f"{'the service refused a message' if refused else 'its files'}: {error}"
                with contextlib.suppress(Lost, Refused):
                    task.fail(self.door, self.info.name, why)
                self._drop(id, why)

    def _forget(self) -> None:
        """Delete the folders of works that the service has deleted."""
        kept = self._kept()
        for id in self.door.beat(self.info.name, [], kept)[1]:
            if id in kept and id not in self._tasks:  # a folder's own name, no path
                shutil.rmtree(self.root / id, ignore_errors=True)

    def _take(self) -> None:
        lease = self.door.lease(self.info, self._kinds(), list(self._tasks))
        if lease is None:
            return
        _log("taken", work=lease.id, kind=lease.kind, attempt=lease.attempt)
        try:
            task = Task(lease, self.root, self.capacity.plan_memory, self.engine)
        except OSError as error:  # such as a full disk: the other works go on
            problem = f"the worker cannot begin it: {error.strerror or error}"
            ending = Ending(attempt=lease.attempt, exit_code=EXIT_MACHINE, error=problem)
            with contextlib.suppress(Lost, Refused):
                self.door.finish(self.info.name, lease.id, ending)
            _log("could not begin", work=lease.id, why=str(error))
            return
        self._tasks[lease.id] = task

    def _kinds(self) -> list[Kind]:
        leases = [task.lease for task in self._tasks.values()]
        runs = [lease.devices for lease in leases if lease.kind == "run"]
        kinds: list[Kind] = []
        if sum(runs) * (self.engine.at_once or 1) < self.capacity.runs:  # Ray queues what is beyond
            kinds.append("run")
        if len(leases) - len(runs) < self.capacity.plans:
            kinds.append("plan")
        return kinds

    def _leave(self) -> None:
        """End running commands now, and give their works back."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._ending.set()
        with ThreadPoolExecutor(max_workers=len(self._tasks) or 1) as pool:
            list(pool.map(Task.leave, self._tasks.values()))
        self.door.timeout_s = LEAVE_S
        for task in self._tasks.values():
            with contextlib.suppress(Away, AutotuneError, Lost, Refused, OSError, ValueError):
                task.give_back(self.door, self.info.name)

    def _kept(self) -> list[str]:
        """Return the works that have a folder here; remove the oldest beyond the limit of size."""
        folders = [path for path in self.root.iterdir() if (path / "work.json").is_file()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        taken, kept = 0, []
        for folder in folders:
            size = _size(folder)
            taken += size
            if size > self.capacity.folders and folder.name in self._tasks:
                most = f"its folder took more than the {self.capacity.folders / 2**30:.3g} GiB"
                self._tasks[folder.name].give_up(most)
            if taken > self.capacity.folders and folder.name not in self._tasks:
                _log("folder removed", work=folder.name)
                shutil.rmtree(folder, ignore_errors=True)
            else:
                kept.append(folder.name)
        return kept[:1000]

    def _drop(self, id: str, why: str) -> None:
        del self._tasks[id]
        _log(why, work=id)

    def _is_time(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every_s
        return True

    def _say(self, answers: bool, why: str) -> None:
        if answers != self._answers:
            self._answers = answers
            _log("the service answers" if answers else "the service does not answer", why=why)


def _size(folder: Path) -> int:
    with contextlib.suppress(OSError):  # something is being removed at this moment
        files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.lstat().st_size for path in files)
    return 0


def _log(event: str, **data: Any) -> None:
    log.info(json.dumps({"event": event, **data}))


def start_worker(
    address: Callable[[], str], token: str, folder: Path, capacity: Capacity, engine: EngineOptions
) -> None:
    """Work until SIGTERM or Ctrl-C.

    Args:
        engine: of runs; a cluster's nodes are counted now, and multiply `capacity.runs`.

    Raises:
        UserError: another worker uses the folder, or the cluster is not safe.
        MachineError: the service does not take this worker, or the cluster cannot be reached.
    """
    with private_folder(folder), _own_folder(folder) as id:
        info, places = _here(id), 1
        if engine.address is not None and capacity.runs:
            kind, counts = devices_on_ray(engine, folder / "ray.log")
            about = {"device_kind": kind, "devices": sum(counts), "device_name": "a Ray cluster"}
            info = info.model_copy(update=about)
            places = sum(counts) if kind == "cuda" else len(counts)
            _log("counted", device_kind=kind, devices=counts)
        WorkerLoop(
            info=info,
            door=Door(address, token),
            beats=Door(address, token),
            root=folder,
            capacity=replace(capacity, runs=capacity.runs * places),
            engine=engine,
        ).run()


def _here(id: str) -> WorkerInfo:
    """Return a worker of the GPUs that CUDA shows, or of the CPU where there is none."""
    machine = re.sub(r"[^\w.-]", "-", platform.node() or "machine")[:100]
    visible = devices.visible_gpus()
    device = devices.gpu(visible[0]) if visible else devices.cpu()
    return WorkerInfo(
        name=f"{machine}:{id}",
        device_kind="cuda" if visible else "cpu",
        # As many ranks may train on the CPU together as there are cores.
        devices=len(visible) or device.cores,
        device_name=device.name[:128],
    )


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[str]:
    """Hold the lock of a worker's folder; yield the id of its worker, which it has for good."""
    lock = os.open(folder / ".worker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            hint = "give each worker a folder of its own: --folder"
            what = "another worker works in this folder"
            raise user_error(what, where=str(folder), hint=hint) from None
        id = os.pread(lock, 16, 0).decode("ascii", "replace")
        if not re.fullmatch("[0-9a-f]{16}", id):
            id = secrets.token_hex(8)
            os.pwrite(lock, id.encode("ascii"), 0)
        yield id
    finally:
        os.close(lock)
