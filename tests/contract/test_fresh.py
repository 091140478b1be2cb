"""Where the server cannot fork, every child is a new interpreter; all else is as it was."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage, still_running

from autotune.process.child_server import ChildServer
from autotune.process.messages import read_json

NOTES = "import os\nSEEN = os.environ.get('A_VARIABLE')\n"
PRELOADED = ("numpy", "notes_a_variable")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "notes_a_variable.py").write_text(NOTES, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), STUBS_PATH])}


@pytest.fixture(scope="module")
def fresh_server(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChildServer]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    variables = {**environment, "AUTOTUNE_PROCESSES": "fresh"}
    with ChildServer(log, PRELOADED, variables) as server:
        yield server


@pytest.fixture
def fresh(fresh_server: ChildServer, tmp_path: Path) -> Stage:
    return Stage(fresh_server, tmp_path / "a 0 ü")


def test_a_child_is_a_new_interpreter_that_has_the_request_before_it_imports(fresh: Stage) -> None:
    assert fresh.server.fresh == "AUTOTUNE_PROCESSES=fresh asks for it"
    fresh.folder.path.mkdir()
    request = {"environment": {"A_VARIABLE": "of the request"}}
    fresh.folder.request.write_text(json.dumps(request), encoding="utf-8")
    assert fresh.run("tells_its_process").exit_code == 0
    reply = read_json(fresh.folder.reply) or {}
    assert "autotune.process.run_worker" in reply["command"]
    assert reply["seen_at_import"] == "of the request"
    assert reply["descriptors"] == [0, 1, 2, 3]  # the last one is the list's own
    assert abs(reply["unmapped_bytes"]) < 2**20  # it has the libraries itself


def test_a_server_that_can_fork_does(environment: dict[str, str], tmp_path: Path) -> None:
    with ChildServer(tmp_path / "log", PRELOADED, environment) as server:
        stage = Stage(server, tmp_path / "probe")
        assert server.fresh is None
        stage.run("tells_its_process")
    reply = read_json(stage.folder.reply) or {}
    assert "autotune.process.forkserver" in reply["command"]
    assert reply["unmapped_bytes"] > 2**20  # the server has them


def test_for_a_gpu_nothing_is_imported_before_the_worker_has_looked_at_it(fresh: Stage) -> None:
    fresh.folder.path.mkdir()
    fresh.folder.request.write_text('{"device_kind": "cuda"}', encoding="utf-8")
    assert fresh.run("tells_its_process").exit_code == 1
    assert "KeyError: 'notes_a_variable'" in fresh.folder.stderr.read_text(encoding="utf-8")


def test_it_ends_as_forked_children_do(fresh: Stage) -> None:
    assert fresh.run("exits", code=7).exit_code == 7
    assert fresh.run("exits_past_threads").exit_code == 0
    assert fresh.run("killed").signal == signal.SIGKILL
    assert fresh.run("there_is_no_such_worker").exit_code == 1


def test_what_it_leaves_behind_is_killed(fresh: Stage) -> None:
    ending = fresh.run("leaves_one_that_escaped")
    assert (ending.why, ending.strays) == ("exited", 1)
    assert still_running(fresh.pids()) == []


def test_it_is_killed_with_all_that_it_started(fresh: Stage) -> None:
    ending = fresh.run("escapes_and_sleeps", wall_s=2.0)
    assert (ending.why, ending.strays) == ("wall", 1)
    assert still_running(fresh.pids()) == []


def test_it_dies_with_the_server(fresh: Stage) -> None:
    assert fresh.run("kills_the_server").why == "lost"
    assert still_running(fresh.pids()) == []
    assert fresh.run("exits", code=7).exit_code == 7
