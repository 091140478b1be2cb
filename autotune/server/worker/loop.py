"""A worker: its devices, its folder, and its loop, which sends the events of running commands and
takes new works."""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
SECRETS = ("AUTOTUNE_TOKEN", "AUTOTUNE_STORAGE")
"""Variables that are hidden from commands of works."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The load that a worker takes.

    Attributes:
        runs: whether it takes runs, one at a time.
        plans: the number of plans beside that.
        plan_memory: bytes for all processes of one.
        folders: bytes of all folders together; beyond it, the oldest ended ones are deleted.
    """

    runs: bool
    plans: int
    plan_memory: int
    folders: int


@dataclass
class WorkerLoop:
    """The loop of a worker, and a thread beside it that watches commands and keeps their leases,
    whatever takes the loop long.

    Attributes:
        beats: another connection, of that thread.
        environment: of commands, in place of its own.
        replaces: the instance that worked in its folder before, and is dead; empty: there was none.
    """

    info: WorkerInfo
    door: Door
    beats: Door
    root: Path
    capacity: Capacity
    environment: dict[str, str | None]
    replaces: str
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
        lease = self.door.lease(self.info, self._kinds(), self.replaces, list(self._tasks))
        if lease is None:
            return
        _log("taken", work=lease.id, kind=lease.kind, attempt=lease.attempt)
        try:
            task = Task(lease, self.root, self.environment, self.capacity.plan_memory)
        except OSError as error:  # such as a full disk: the other works go on
            problem = f"the worker cannot begin it: {error.strerror or error}"
            ending = Ending(attempt=lease.attempt, exit_code=EXIT_MACHINE, error=problem)
            self.door.finish(self.info.name, lease.id, ending)
            _log("could not begin", work=lease.id, why=str(error))
            return
        self._tasks[lease.id] = task

    def _kinds(self) -> list[Kind]:
        running = [task.lease.kind for task in self._tasks.values()]
        kinds: list[Kind] = []
        if self.capacity.runs and "run" not in running:
            kinds.append("run")
        if running.count("plan") < self.capacity.plans:
            kinds.append("plan")
        return kinds

    def _leave(self) -> None:
        """End running commands now, and give their works back."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._ending.set()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Task.end, self._tasks.values()))
        self.door.timeout_s = LEAVE_S
        for task in self._tasks.values():
            with contextlib.suppress(Away, AutotuneError, Lost, Refused, OSError, ValueError):
                task.give_back(self.door, self.info.name)
        with contextlib.suppress(Away, AutotuneError):
            self.door.leave(self.info.name)

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


def worker_info(wanted: Sequence[int] | None, machine: str | None = None) -> WorkerInfo:
    """Return the worker of some GPUs, of all that CUDA shows, or of the CPU where there is none.

    Args:
        machine: a name for this machine, in place of the one that it has.

    Raises:
        UserError: there is no such GPU.
    """
    machine = re.sub(r"[^\w.-]", "-", machine or platform.node() or "machine")[:100]
    visible = devices.visible_gpus()
    unknown = [index for index in wanted or () if index not in visible]
    if unknown:
        there = ", ".join(map(str, visible)) or "none"
        raise user_error(
            f"there is no GPU {unknown[0]} here", where="--devices", hint=f"GPUs here: {there}"
        )
    own = list(wanted if wanted is not None else visible)
    device = devices.gpu(own[0]) if own else devices.cpu()
    return WorkerInfo(
        name=f"{machine}:{'-'.join(map(str, own)) or 'cpu'}"[:128],
        machine=machine,
        device_kind="cuda" if own else "cpu",
        # As many ranks may train on the CPU together as there are cores.
        devices=own or list(range(len(os.sched_getaffinity(0)))),
        device_name=device.name[:128],
        instance=secrets.token_hex(8),
    )


def start_worker(
    address: Callable[[], str],
    token: str,
    folder: Path,
    info: WorkerInfo,
    capacity: Capacity,
) -> None:
    """Work until SIGTERM or Ctrl-C.

    Raises:
        UserError: another worker uses the folder.
        MachineError: the service does not take this worker.
    """
    with private_folder(folder), _own_folder(folder, info) as before:
        environment: dict[str, str | None] = dict.fromkeys(SECRETS)
        if info.device_kind == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, info.devices))
        WorkerLoop(
            info=info,
            door=Door(address, token),
            beats=Door(address, token),
            root=folder,
            capacity=capacity,
            environment=environment,
            replaces=before,
        ).run()


@contextlib.contextmanager
def _own_folder(folder: Path, info: WorkerInfo) -> Iterator[str]:
    """Hold the lock of a worker's folder; the instance that held it before, or an empty text."""
    lock = os.open(folder / ".worker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            hint = "give each worker a folder of its own: --folder"
            what = "another worker works in this folder"
            raise user_error(what, where=str(folder), hint=hint) from None
        before = os.pread(lock, 32, 0).decode("ascii", "replace")
        os.pwrite(lock, info.instance.encode("ascii"), 0)
        yield before
    finally:
        os.close(lock)
