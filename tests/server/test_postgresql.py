"""A service whose state is in PostgreSQL, and two workers, of which one is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

from autotune.client import Client
from autotune.process.descendants import tree
from autotune.server.access.tokens import Tokens
from autotune.server.store.database import open_database, study_url
from autotune.server.store.values import NewWork
from autotune.server.store.works import Full, Room, Works
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import ROOT, served
from tests.server.postgresql import running
from tests.server.restarts import Processes, heard, name_of, small_job, until

pytestmark = pytest.mark.nightly("service")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of a PostgreSQL of our own."""
    with running() as server:
        yield server.url()


@contextlib.contextmanager
def worker(base: Path, cache: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker with a home of its own, as on another machine."""
    home = base / f"home-{name}"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HUB_OFFLINE": "1",
        "AUTOTUNE_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "autotune", "worker", "--plans", "0"]
    command += ["--server-file", str(base / "service" / "address")]
    command += ["--token-file", str(base / "token"), "--folder", str(base / f"works-{name}")]
    with (base / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=base, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def test_a_run_goes_on_with_another_worker_and_its_study_is_in_the_same_database(
    database: str, tmp_path: Path, plan_cache: Path
) -> None:
    store = open_database(database)
    (tmp_path / "token").write_text(Tokens(store).add("workers", "worker"), encoding="ascii")
    store.close()
    settings = {"database": database, "local_worker": False}
    with (
        worker(tmp_path, plan_cache, "one") as one,
        worker(tmp_path, plan_cache, "two") as two,
        served(tmp_path, plan_cache, settings) as service,
    ):
        client = Client(service.url)
        until(
            lambda: client._json({"workers": int}, "GET", "health")["workers"] == 2, "two workers"
        )
        run = client.submit(
            "run", small_job(write_model(service.models / "model", LLAMA), probes=1)
        )
        heard(client, run, "probing", probe=0)
        first = client.get("run", run["id"])
        names = [name_of(tmp_path / f"works-{name}") for name in ("one", "two")]
        killed, other = (one, names[1]) if first["worker"] == names[0] else (two, names[0])
        running = Processes(killed.pid)
        assert len(tree(killed.pid)) > 2
        killed.kill()
        killed.wait()
        at = time.monotonic()
        until(lambda: not running.living(), "what the worker ran is gone")
        assert time.monotonic() - at < 30
        done = client.wait(run)
        assert (done["state"], done["worker"], done["attempt"]) == ("done", other, 2), done
        assert done["outcome"] == "recommended"
        numbers = [event["number"] for event in client.follow(run)]
        assert numbers == list(range(1, done["events"] + 1))
        assert not (service.folder / "service.db").exists()
    url = study_url(database)
    assert url is not None
    storage = optuna.storages.RDBStorage(url)
    names = optuna.get_all_study_names(storage)
    studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
    counts = [len(study.trials) for study in studies]
    storage.remove_session()
    storage.engine.dispose()
    assert max(counts) == done["result"]["probes"]["total"], counts
    assert not list(tmp_path.rglob("study.db"))


def test_works_that_are_added_at_once_are_counted_one_by_one(database: str) -> None:
    opened = open_database(database)
    works = Works(opened)
    new = NewWork(kind="plan", job="model: m", method="sft", model="m", submitter="ada")

    def add(_: int) -> bool:
        try:
            works.add(new, Room(all=9, each=2))
        except Full:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(8))) == 2
    opened.close()
