"""Studies in PostgreSQL: a server that is restarted, a new database, a password."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from autotune.errors import MachineError, UserError
from autotune.search import storage
from autotune.search.storage import faults_of_storage
from autotune.search.study import Study
from tests.cpu.conftest import LLAMA, Command, write_model
from tests.server.postgresql import PostgreSQL, running
from tests.server.restarts import small_job
from tests.unit.builders import make_job, make_sampler, make_space, ok

SPACE = make_space(make_job())
PASSWORD = "a-word-nobody-may-see"


pytestmark = pytest.mark.nightly("service")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with running() as server:
        yield server


def open_study(url: str) -> Study:
    return Study(SPACE, url, "study", allowed_bytes=None, sampler=make_sampler(SPACE))


def restart(server: PostgreSQL, away_s: float) -> None:
    server.stop()
    time.sleep(away_s)
    server.start()


def test_a_server_that_is_restarted_is_waited_for(server: PostgreSQL) -> None:
    server.create("restarted")
    study = open_study(server.url("restarted"))
    trial, candidate = study.ask()
    server.stop()
    restarting = threading.Timer(2.0, server.start)
    restarting.start()
    study.tell(trial, ok(5.0))
    restarting.join()
    restart(server, 0.0)
    (record,) = study.records()
    assert (record.candidate, record.measurement) == (candidate, ok(5.0))


def test_one_that_stays_away_is_a_message(
    server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "WAIT_S", 0.5)
    server.create("away")
    study = open_study(server.url("away", PASSWORD))
    trial, _ = study.ask()
    server.stop()
    try:
        with pytest.raises(MachineError) as caught, faults_of_storage("AUTOTUNE_STORAGE"):
            study.tell(trial, ok(5.0))
    finally:
        server.start()
    message = str(caught.value)
    assert message.startswith("AUTOTUNE_STORAGE: the storage of the study failed: connection ")
    assert "resume the run" in message and PASSWORD not in message


def test_who_looks_at_a_study_makes_no_table(server: PostgreSQL) -> None:
    server.create("empty")
    with pytest.raises(UserError, match="cannot open the study"):
        Study(SPACE, server.url("empty"), "study", allowed_bytes=None)
    with psycopg.connect(server.url("empty")) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(query).fetchone() == (0,)
    open_study(server.url("empty"))
    with pytest.raises(UserError, match="it holds no study `another`"):
        Study(SPACE, server.url("empty"), "another", allowed_bytes=None)


def test_several_that_find_a_new_database_all_start(server: PostgreSQL) -> None:
    """Forked, and begun at one moment: the tables are made once."""
    for number in range(2):
        server.create(f"new{number}")
        url, begin = server.url(f"new{number}"), time.monotonic() + 0.3
        workers = [_opening(url, begin) for _ in range(4)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        assert codes == [0] * 4


def _opening(url: str, begin: float) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            time.sleep(max(begin - time.monotonic(), 0.0))
            study = open_study(url)
            study.tell(study.ask()[0], ok(5.0))
            code = 0
        finally:
            os._exit(code)
    return pid


def test_a_run_outlives_a_restart_and_its_password_is_in_no_process_list(
    server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("run")
    monkeypatch.setenv("AUTOTUNE_STORAGE", server.url("run", PASSWORD))
    autotune = Command(tmp_path)
    job = small_job(write_model(tmp_path / "model", LLAMA), probes=1)
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    process = autotune.start("run", "job.yaml", "--out", "run", "--no-verify", "--json")
    probe, seen, restarted = tmp_path / "run" / "probes" / "0000", set(), False
    while process.poll() is None:
        seen |= command_lines()
        if not restarted and (probe / "request.json").exists():
            restart(server, 1.0)
            restarted = True
        time.sleep(0.05)
    out, err = process.communicate()
    assert (process.returncode, restarted) == (0, True), err
    assert json.loads(out)["probes"]["total"] == 1
    assert any("autotune.process.forkserver" in line for line in seen)
    assert not [line for line in seen if PASSWORD in line]
    assert PASSWORD not in err
    shown = json.loads(autotune("report", "run", "--json"))
    assert [probe["measurement"]["outcome"] for probe in shown["probes"]] == ["ok"]
    assert not list(tmp_path.rglob("study.db"))


def command_lines() -> set[str]:
    lines = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                lines.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (OSError, UnicodeDecodeError):
                continue
    return lines
