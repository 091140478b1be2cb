"""The forkserver's own end: by a child, by the parent's death, by Ctrl-C, by being closed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage, running, still_running

from autotune.errors import MachineError
from autotune.probe import survey
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder
from autotune.process.run_folder import RunFolder
from autotune.space.job_file.load import load_job

PARENT = """
import signal, sys, time
from pathlib import Path
from autotune.process.messages import ChildFolder
from autotune.process.limits import Limits
from autotune.process.child_server import ChildServer

home, path = Path(sys.argv[1]), sys.argv[2]

def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

def interrupted(*_):
    time.sleep(0.3)
    pids = (home / "probe" / "pids").read_text().split()
    (home / "states").write_text(" ".join(map(state, pids)))
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
with ChildServer(home / "log", preload=(), environment={"PYTHONPATH": path}) as server:
    try:
        server.run(ChildFolder(path=home / "probe"), "stubs:escapes_and_sleeps", Limits())
    except KeyboardInterrupt:
        pass
sys.exit(5)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A parent in a process group of its own, and the processes under it: server, child, stray."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), STUBS_PATH],
        env={**os.environ, "PYTHONPATH": STUBS_PATH},
        start_new_session=True,
    )
    path = tmp_path / "probe" / "pids"
    deadline = time.monotonic() + 30
    while not path.exists() or path.read_text(encoding="ascii").count("\n") < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    pids = [int(line) for line in path.read_text(encoding="ascii").split()]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    server = [int(pid) for pid in children.read_text(encoding="ascii").split()]
    assert len(server) == 1 and all(running(pid) for pid in server + pids)
    yield process, server + pids
    process.kill()
    process.wait()
    for pid in still_running(server + pids, within_s=0.0):
        os.kill(pid, signal.SIGKILL)


Parent = tuple[subprocess.Popen[bytes], list[int]]


def test_a_parent_that_is_killed_takes_server_child_and_stray_with_it(parent: Parent) -> None:
    process, pids = parent
    process.kill()
    process.wait()
    assert still_running(pids) == []


def test_a_parent_that_is_terminated_takes_server_child_and_stray_with_it(parent: Parent) -> None:
    process, pids = parent
    process.terminate()
    process.wait()
    assert still_running(pids) == []


def test_ctrl_c_reaches_the_parent_alone_and_it_ends_the_rest(
    parent: Parent, tmp_path: Path
) -> None:
    process, pids = parent
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 5
    assert (tmp_path / "states").read_text(encoding="ascii") == "S S"  # alive and asleep until then
    assert still_running(pids, within_s=0.0) == []


def test_a_server_that_dies_takes_its_child_with_it(parent: Parent) -> None:
    _, (server, _, child) = parent
    os.kill(server, signal.SIGKILL)
    assert still_running([server, child]) == []


def test_a_child_that_kills_the_server_is_lost_and_the_next_one_runs(stage: Stage) -> None:
    ending = stage.run("kills_the_server")
    assert (ending.why, ending.exit_code, ending.signal) == ("lost", None, None)
    assert still_running(stage.pids()) == []
    assert stage.run("exits", code=7).exit_code == 7


def test_children_of_several_threads_run_beside_each_other(
    shared_server: ChildServer, tmp_path: Path
) -> None:
    """Each waits until all are there, and hears of its own end alone."""
    count = 3
    stages = [Stage(shared_server, tmp_path / str(number)) for number in range(count)]

    def exit_code(number: int) -> int | None:
        peers = [str(stage.folder.path) for stage in stages]
        return stages[number].run("meets", peers=peers, code=40 + number).exit_code

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(exit_code, range(count))) == [40, 41, 42]


def test_a_cancelled_child_is_not_started(shared_server: ChildServer, tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    folder = ChildFolder(path=tmp_path / "probe")
    ending = shared_server.run(folder, "stubs:silent", Limits(), cancelled=cancelled)
    assert ending.why == "lost" and list(folder.path.iterdir()) == []


def test_a_kill_sent_to_a_dead_server_does_not_spoil_the_next_run(
    tmp_path: Path,
) -> None:
    folder = ChildFolder(path=tmp_path / "probe")
    environment = {"PYTHONPATH": STUBS_PATH}
    with ChildServer(tmp_path / "log", preload=(), environment=environment) as server:
        server.run(folder, "stubs:kills_the_server", Limits(wall_s=30))
        server.kill(12345)
        assert server.run(folder, "stubs:silent", Limits(wall_s=30)).exit_code == 0


def test_a_closed_server_starts_again_when_it_is_needed(tmp_path: Path) -> None:
    folder = ChildFolder(path=tmp_path / "probe")
    server = ChildServer(tmp_path / "log", preload=(), environment={"PYTHONPATH": STUBS_PATH})
    try:
        assert server.run(folder, "stubs:silent", Limits(wall_s=30)).exit_code == 0
        server.close()
        assert server.run(folder, "stubs:silent", Limits(wall_s=30)).exit_code == 0
    finally:
        server.close()
        server.close()


def test_a_stack_that_cannot_be_imported_is_a_machine_error_that_says_why(
    tmp_path: Path,
) -> None:
    server = ChildServer(tmp_path / "server.log", preload=("there_is_no_such_module",))
    with pytest.raises(
        MachineError, match="cannot be imported; its log ends: .*there_is_no_such_module"
    ):
        server.__enter__()


@pytest.mark.parametrize("planned", [True, False])
def test_a_survey_that_crashes_says_why_and_names_only_a_log_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    monkeypatch.setattr(survey, "WORKER", "stubs:no_such_worker")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    sets = [f"model={tmp_path / 'config.json'}", "global_batch_size=8", "max_length=64"]
    sets += ["dataset={lengths: {max: 64}}", "devices.kind=cpu"]
    job, _ = load_job(None, sets)
    server = ChildServer(
        tmp_path / "server.log", preload=(), environment={"PYTHONPATH": STUBS_PATH}
    )
    run = RunFolder(path=tmp_path / "run")
    run.path.mkdir()
    with server, pytest.raises(MachineError, match="failed .*no_such_worker") as failure:
        survey.survey(job, run, server, planned=planned)
    assert ("stderr.log" in str(failure.value)) is not planned


def test_a_stack_that_takes_too_long_to_import_is_said_to_be_slow_not_broken(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    server = ChildServer(tmp_path / "log", ("slow_to_import",), environment, ready_s=0.5)
    with pytest.raises(MachineError, match="still being imported after 0.5 s"):
        server.__enter__()
    assert not server.is_alive
