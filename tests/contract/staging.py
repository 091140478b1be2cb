"""Runs stub workers on a real forkserver, and tells which processes are still there."""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from autotune.engine.call import Call, Engine, result_of
from autotune.engine.local import LocalEngine
from autotune.plain_data import from_plain
from autotune.process.child_server import ChildServer
from autotune.process.host_memory import HostMeter
from autotune.process.limits import Ending, Limits, Watcher
from autotune.process.messages import ChildFolder

ROOT = Path(__file__).resolve().parents[2]
STUBS_PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "contract")])


def child(server: ChildServer, folder: ChildFolder, request: Any, watch: Watcher) -> Ending:
    """The task of a call: a stub in a child, where the devices are."""
    return server.run(folder, request["worker"], Limits(**request["limits"]), watch)


class Stage:
    """Runs stub workers on one server, by an engine."""

    def __init__(self, server: ChildServer, path: Path, engine: Engine | None = None):
        self.server, self.engine = server, engine or LocalEngine(server)
        self.folder = ChildFolder(path=path)
        self._count = itertools.count()

    def run(
        self,
        worker: str,
        *,
        wall_s: float = 30.0,
        stall_s: float = 30.0,
        busy_s: float | None = None,
        silent_s: float | None = None,
        watch: Watcher | None = None,
        host: HostMeter | None = None,
        **settings: Any,
    ) -> Ending:
        """Run one stub in this stage's folder."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings)
        (self.folder.path / "settings.json").write_text(text, encoding="utf-8")
        given = {"wall_s": wall_s, "stall_s": stall_s, "busy_s": busy_s, "silent_s": silent_s}
        limits = {name: value for name, value in given.items() if value is not None}
        if host is not None:  # what it has seen stays with it
            return self.server.run(self.folder, f"stubs:{worker}", Limits(**limits), watch, host)
        request = {"worker": f"stubs:{worker}", "limits": limits}
        key = f"{self.folder.path}-{next(self._count)}"
        call = Call(key=key, folder=str(self.folder.path), request=request, task="staging:child")
        ended = result_of(self.engine, call, watch)
        assert ended.result is not None, ended.problems
        return from_plain(Ending, ended.result)

    def pids(self) -> list[int]:
        """The processes that the stub says were there."""
        text = (self.folder.path / "pids").read_text(encoding="ascii")
        return [int(line) for line in text.splitlines()]


def running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def still_running(pids: list[int], within_s: float = 5.0) -> list[int]:
    """Which of these processes have not gone after a while."""
    deadline = time.monotonic() + within_s
    while (pids_alive := [pid for pid in pids if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return pids_alive
