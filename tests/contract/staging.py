"""Runs stub workers on a real forkserver, and tells which processes are still there."""

import json
import os
import time
from pathlib import Path
from typing import Any

from autotune.process.child_server import ChildServer
from autotune.process.host_memory import HostMeter
from autotune.process.limits import Ending, Limits, Watcher
from autotune.process.messages import ChildFolder

ROOT = Path(__file__).resolve().parents[2]
STUBS_PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "contract")])


class Stage:
    """Runs stub workers on one server."""

    def __init__(self, server: ChildServer, path: Path):
        self.server = server
        self.folder = ChildFolder(path=path)

    def run(
        self,
        worker: str,
        *,
        wall_s: float = 30.0,
        stall_s: float = 30.0,
        busy_s: float = float("inf"),
        silent_s: float = float("inf"),
        watch: Watcher | None = None,
        host: HostMeter | None = None,
        **settings: Any,
    ) -> Ending:
        """Run one stub in this stage's folder."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings)
        (self.folder.path / "settings.json").write_text(text, encoding="utf-8")
        limits = Limits(wall_s=wall_s, stall_s=stall_s, busy_s=busy_s, silent_s=silent_s)
        return self.server.run(self.folder, f"stubs:{worker}", limits, watch, host)

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
