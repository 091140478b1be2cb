"""A service that is ended and started again, and what is looked at meanwhile."""

import contextlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.client import Client, Event, Work
from autotune.process.descendants import tree
from autotune.process.proc import start_ticks
from autotune.server.serve import local_worker
from autotune.server.store.database import Database, open_database, sqlite_url
from autotune.server.store.tables import WorkRow
from autotune.server.store.works import Works
from tests.cpu.test_run import FEW
from tests.server.conftest import Served, served

LONG_S = 600.0
"""For what takes seconds on a machine that has nothing else to do."""


def small_job(model: Path, probes: int = 2) -> str:
    """Four candidates, of which some are probed."""
    job = {
        "model": str(model),
        "dataset": {"lengths": {"max": 100, "p50": 30, "p99": 90, "rows": 500}},
        "global_batch_size": 8,
        "max_length": 100,
        "budget": {"probes": probes, "minutes": 10},
        "fixed": {**FEW, "gradient_checkpointing": False, "use_liger_kernel": False},
    }
    return json.dumps(job)


def until(found: Callable[[], Any], what: str) -> Any:
    """What is found at last."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")


def name_of(works: Path) -> str:
    """The name of the worker of a folder."""
    return f"{platform.node()}:{(works / '.worker.lock').read_text(encoding='ascii')}"


def heard(client: Client, work: Work, kind: str, after: int = 0, **data: Any) -> Event:
    """The first event of a kind with these data."""
    for event in client.follow(work, after):
        if event["kind"] == kind and data.items() <= event["data"].items():
            return event
    raise AssertionError(f"no {kind}: {client.get(work['kind'], work['id'])}")


class Processes:
    """A process and all that it has started; of a work: only what is of that."""

    def __init__(self, pid: int, work: str = "") -> None:
        roots = [child for child in tree(pid) if work in _command(child)]
        children = {child for root in roots for child in tree(root)}
        self._found = {child: start_ticks(child) for child in children}

    def living(self) -> list[int]:
        return [pid for pid, began in self._found.items() if began == start_ticks(pid) is not None]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Keeper:
    """A service that is ended and started again, in the same folder."""

    def __init__(self, base: Path, cache: Path) -> None:
        self._base, self._cache = base, cache
        self._stack = contextlib.ExitStack()
        self.start()

    def start(self, port: int = 0, **settings: Any) -> None:
        self._now = self._stack.enter_context(served(self._base, self._cache, settings, port))
        self.client = Client(self._now.url)

    def start_again(self) -> None:
        """Where clients look for it."""
        self.start(int(self._now.url.rpartition(":")[2]))

    @property
    def now(self) -> Served:
        return self._now

    def stop(self) -> None:
        """As systemd does."""
        self._stack.close()

    def kill(self) -> None:
        self._now.process.kill()
        self._now.process.wait()
        self._stack.close()

    def worker(self) -> int:
        pid = local_worker(self._now.folder)
        assert pid is not None
        return pid

    def folder(self, work: Work) -> Path:
        return self._now.folder / "works" / str(work["id"])

    def stored(self, work: Work) -> str | None:
        """The state of a work in the database."""
        with contextlib.closing(self._database()) as database:
            return Works(database).state(work["id"])

    def end_lease(self, work: Work) -> str | None:
        """End the lease of a work that runs, as time does; return its state until then."""
        with contextlib.closing(self._database()) as database, database.writing() as session:
            row = session.get_one(WorkRow, work["id"])
            if row.state == "running":
                row.lease_until = 1.0
            return row.state

    def _database(self) -> Database:
        return open_database(sqlite_url(self._now.folder / "service.db"))
