"""A real worker of a real service over a real Ray with two places: runs beside each other, and what
is left when one is cancelled, and when their worker is killed or ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import Nodes, nodes

from autotune.client import Client
from autotune.server.access.tokens import Tokens
from autotune.server.store.database import open_database, sqlite_url
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import Served, served
from tests.server.restarts import LONG_S, heard, small_job, until


class Worker:
    """`autotune worker --engine ray`, which may be started anew in its folder."""

    def __init__(self, base: Path, cache: Path, cluster: Nodes) -> None:
        self._base = base
        (base / "service").mkdir()
        database = open_database(sqlite_url(base / "service" / "service.db"))
        (base / "token").write_text(Tokens(database).add("w", "worker"), encoding="ascii")
        database.close()
        self._command = [sys.executable, "-m", "autotune", "worker", "--plans=0"]
        self._command += ["--engine=ray", f"--address={cluster.address}"]
        self._command += [f"--server-file={base / 'service' / 'address'}"]
        self._command += [f"--token-file={base / 'token'}", f"--folder={base / 'works'}"]
        self._variables = {**os.environ, **cluster.variables, "AUTOTUNE_CACHE": str(cache)}
        self.start()

    def start(self) -> None:
        with (self._base / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._variables, stdout=log, stderr=log, start_new_session=True
            )

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(LONG_S)


@contextlib.contextmanager
def over_ray(base: Path, cache: Path) -> Iterator[tuple[Nodes, Served, Worker]]:
    with nodes(2) as cluster:
        worker = Worker(base, cache, cluster)
        try:
            with served(base, cache, {"local_worker": False}) as service:
                yield cluster, service, worker
        finally:
            if worker.process.poll() is None:
                worker.end(signal.SIGTERM)


def lanes(cluster: Nodes) -> int:
    """How many lanes are on the nodes."""
    there = [process for number in cluster.started for process in cluster.processes(number)]
    return sum("ray::Lane" in process.name() for process in there if process.is_running())


def text_of(file: Path) -> str:
    """The text of a file; empty while there is none."""
    return file.read_text(encoding="utf-8") if file.exists() else ""


@pytest.mark.nightly("engine")
def test_runs_are_at_work_at_once_and_return_to_the_queue_with_their_worker(
    tmp_path: Path, plan_cache: Path
) -> None:
    with over_ray(tmp_path, plan_cache) as (cluster, service, worker):
        client = Client(service.url)
        job = small_job(write_model(service.models / "model", LLAMA), probes=4)
        one, two, third = (client.submit("run", job) for _ in range(3))
        probed = [heard(client, run, "probed") for run in (one, two)]
        found = [event["data"]["measurement"] for event in probed]
        assert [one["outcome"] for one in found] == ["ok", "ok"]
        assert found[0]["node"] != found[1]["node"]
        assert client.get("run", third["id"])["state"] == "queued" and lanes(cluster) == 2
        client.cancel(one)
        stopped = client.wait(one)
        assert stopped["state"] == "cancelled"
        assert stopped["started"] < min(event["utc"] for event in probed)
        assert stopped["ended"] > max(event["utc"] for event in probed), "at work at once"
        until(lambda: lanes(cluster) == 1, "its devices are given back")
        until(lambda: client.get("run", third["id"])["state"] == "running", "it has its place")
        worker.end(signal.SIGKILL)
        worker.start()
        for run in (two, third):
            second = tmp_path / "works" / run["id"] / "attempt-2" / "events.jsonl"
            until(lambda at=second: "standing" in text_of(at), "another attempt, and its lanes")
        worker.end(signal.SIGTERM)
        states = [client.get("run", run["id"])["state"] for run in (two, third)]
        assert states == ["queued", "queued"]
        until(lambda: lanes(cluster) == 0, "its devices are given back")
