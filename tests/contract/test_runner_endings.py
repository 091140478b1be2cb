"""How a child can end by itself, and how that is told."""

import json
import signal
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage

from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json


def test_an_exit_without_a_reply_is_an_exit_with_code_0(stage: Stage) -> None:
    ending = stage.run("silent")
    assert (ending.why, ending.exit_code, ending.signal) == ("exited", 0, None)
    assert ending.strays == 0
    assert ending.max_rss_bytes is not None and ending.max_rss_bytes > 2**20
    assert not stage.folder.reply.exists()


@pytest.mark.parametrize(
    ("worker", "number"),
    [
        ("killed", signal.SIGKILL),
        ("aborts", signal.SIGABRT),
        ("segfaults", signal.SIGSEGV),
    ],
)
def test_a_signal_is_told_as_that_signal(stage: Stage, worker: str, number: int) -> None:
    ending = stage.run(worker)
    assert (ending.why, ending.exit_code, ending.signal) == ("exited", None, number)


def test_an_exception_is_exit_code_1_and_its_trace_is_in_the_log(stage: Stage) -> None:
    ending = stage.run("raises")
    assert (ending.why, ending.exit_code) == ("exited", 1)
    text = stage.folder.stderr.read_text(encoding="utf-8")
    assert "RuntimeError: no such luck" in text


def test_an_exception_that_cannot_be_printed_is_exit_code_1_all_the_same(stage: Stage) -> None:
    assert stage.run("raises_without_stderr").exit_code == 1


@pytest.mark.parametrize(
    ("code", "exit_code"), [(7, 7), (0, 0), (None, 0), ("a text", 1), (-1, 255)]
)
def test_sys_exit_means_what_it_means_in_a_program(
    stage: Stage, code: int | str | None, exit_code: int
) -> None:
    ending = stage.run("exits", code=code)
    assert (ending.why, ending.exit_code) == ("exited", exit_code)


def test_an_impossible_exit_code_ends_the_child_alone(stage: Stage) -> None:
    assert stage.run("exits", code=2**70).why == "exited"
    assert "Traceback" not in stage.folder.stderr.read_text(encoding="utf-8")
    assert stage.run("silent").exit_code == 0


def test_a_worker_that_cannot_be_imported_is_exit_code_1(stage: Stage) -> None:
    assert stage.run("there_is_no_such_worker").exit_code == 1


def test_a_thread_that_never_ends_does_not_keep_the_child(stage: Stage) -> None:
    ending = stage.run("exits_past_threads")
    assert (ending.exit_code, ending.seconds < 10) == (0, True)


def test_a_real_allocation_failure_is_an_exit_and_the_trace_says_why(stage: Stage) -> None:
    ending = stage.run("wants_too_much")
    assert (ending.why, ending.exit_code) == ("exited", 1)
    assert "MemoryError" in stage.folder.stderr.read_text(encoding="utf-8")


def test_a_child_that_closes_its_outputs_can_still_reply(stage: Stage) -> None:
    ending = stage.run("closes_its_outputs")
    assert (ending.why, ending.exit_code) == ("exited", 0)
    assert read_json(stage.folder.reply) == {"outcome": "crash", "reason": "mute"}


def test_a_very_large_reply_arrives_whole(stage: Stage) -> None:
    assert stage.run("large_reply").exit_code == 0
    reply = read_json(stage.folder.reply)
    assert isinstance(reply, dict)
    assert len(reply["reason"]) == 30 * 2**20
    assert len(reply["unknown"]) == 500_000


def test_a_reply_of_an_earlier_run_in_the_same_folder_is_not_taken_for_this_one(
    stage: Stage,
) -> None:
    stage.run("says", reply='{"outcome": "ok", "reason": "old"}')
    assert stage.folder.reply.exists()
    stage.run("ticks", watch=lambda _: "enough")
    ending = stage.run("silent")
    assert read_json(stage.folder.reply) is None
    assert ending.events == ()


def test_a_folder_may_have_any_name(nasty_dir: Path) -> None:
    folder = ChildFolder(path=nasty_dir / "probe")
    log = nasty_dir / "server.log"
    with ChildServer(log, preload=(), environment={"PYTHONPATH": STUBS_PATH}) as server:
        ending = server.run(folder, "stubs:names_its_folder", Limits(wall_s=30.0))
    assert ending.exit_code == 0
    assert read_json(folder.reply) == {"outcome": "crash", "reason": str(folder.path)}
    assert ending.events == ({"event": "here", "folder": str(folder.path)},)
    assert folder.stdout.read_text(encoding="utf-8") == f"{folder.path}\n"


def test_files_of_the_users_own_do_not_stand_in_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder a user stands in may hold a `json.py` or a `datasets.py`."""
    for name in ("json.py", "queue.py", "stubs.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = ChildFolder(path=tmp_path / "probe")
    server = ChildServer(
        tmp_path / "log", preload=("queue",), environment={"PYTHONPATH": STUBS_PATH}
    )
    with server:
        ending = server.run(folder, "stubs:silent", Limits(wall_s=30.0))
    assert ending.exit_code == 0


def test_settings_travel_as_json(stage: Stage) -> None:
    stage.run("says", reply=json.dumps({"outcome": "crash", "reason": "ü"}))
    assert read_json(stage.folder.reply) == {"outcome": "crash", "reason": "ü"}
