"""What a worker reads of growing files, and ends: plans that take too much
memory, works that take too long or too much disk."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from pydantic import ValidationError

from autotune.engine.opening import EngineOptions
from autotune.server.store.database import Database, study_url
from autotune.server.store.queue import Queue
from autotune.server.store.values import Beat, Ending, Lease, NewWork, WorkerInfo
from autotune.server.store.works import Works
from autotune.server.worker import task as task_module
from autotune.server.worker.door import Away, Door
from autotune.server.worker.loop import Capacity, WorkerLoop
from autotune.server.worker.output import Shown, Tail
from autotune.server.worker.task import Task

HERE = WorkerInfo(name="here:0", device_kind="cuda", devices=1, device_name="A")
LOCAL = EngineOptions()
INFO = WorkerInfo(name="w", device_kind="cpu", devices=1, device_name="a processor")


def test_a_line_is_a_line_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    texts = ["a\u2028b", "c\x85d", "e\x0cf", "ü"]
    lines = [
        json.dumps({"utc": 1.0, "kind": "k", "data": {"t": t}}, ensure_ascii=False) for t in texts
    ]
    file.write_text("\n".join(lines) + "\nnot yet whole", encoding="utf-8")
    tail = Tail(file, "events", 1, plain=False, shown=str)
    assert [line["data"]["t"] for line in tail.waiting()] == texts


def _leased(database: Database) -> tuple[Works, Queue, str]:
    works, queue = Works(database), Queue(database)
    work = works.add(NewWork(kind="run", job="model: m", method="sft", model="m"))
    assert queue.lease(HERE, ["run"]) is not None
    return works, queue, work.id


@pytest.mark.parametrize("code", [130, 137, 143])
def test_what_was_cancelled_is_cancelled_however_its_command_ended(
    database: Database, code: int
) -> None:
    works, queue, id = _leased(database)
    assert works.cancel(id)
    assert queue.finish(HERE.name, id, Ending(attempt=1, exit_code=code))
    assert works.state(id) == "cancelled"


def test_a_command_that_nobody_asked_to_end_has_failed(database: Database) -> None:
    works, queue, id = _leased(database)
    assert queue.finish(HERE.name, id, Ending(attempt=1, exit_code=137))
    assert works.state(id) == "failed"


def test_workers_are_given_time_when_the_service_was_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue, id = _leased(database)
    monkeypatch.setattr("autotune.server.store.queue.LEASE_S", -1.0)
    queue.renew()
    monkeypatch.undo()
    queue.renew()  # as it does when it starts
    assert queue.expire() == []
    assert works.state(id) == "running"


def test_a_service_without_an_address_is_away(tmp_path: Path) -> None:
    door = Door((tmp_path / "address").read_text, "token")
    with pytest.raises(Away):
        door.lease(HERE, ["run"], [])


@pytest.mark.parametrize("answer", [b"<html>Sign in</html>", b"[1]", b'{"id": "../x"}', b"\xff"])
def test_what_answers_like_no_service_is_away(answer: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    door = Door(lambda: f"http://127.0.0.1:{server.server_address[1]}", "token")
    lease = Lease.model_construct(id="0123456789abcdef", attempt=1)
    try:
        for ask in (
            lambda: door.lease(HERE, ["run"], []),
            lambda: door.beat("w", [], []),
            lambda: door.send("w", lease, Tail(Path("x"), "events", 1, plain=True, shown=str), []),
        ):
            with pytest.raises(Away, match="no answer of a service"):
                ask()
    finally:
        server.shutdown()
        server.server_close()


def test_studies_go_to_postgresql_by_the_driver_that_is_installed() -> None:
    url = "postgresql://somebody:secret@host/name?host=/tmp"
    assert study_url(url) == "postgresql+psycopg://somebody:secret@host/name?host=%2Ftmp"
    assert study_url("sqlite:////folder/service.db") is None


def test_lines_and_texts_do_not_tell_where_the_worker_has_its_folders(tmp_path: Path) -> None:
    root, id = tmp_path / "the ü works", "0123456789abcdef"
    shown = Shown(root, id).text
    folder = root / id
    for text, expected in (
        (f"in {folder}/run/probes/0000, {folder}: here", "in run/probes/0000, .: here"),
        (f"'{folder}/job.yaml'", "'job.yaml'"),
        (f"{root}/fedcba9876543210/run", "fedcba9876543210/run"),
        (f"{root}", "."),
        (f"{root}-2/x and /else{root}", f"{root}-2/x and /else{root}"),
    ):
        assert shown(text) == expected
    for ascii_only in (True, False):
        text = json.dumps({"at": f"{folder}/run", "in": [str(folder)]}, ensure_ascii=ascii_only)
        assert json.loads(shown(text)) == {"at": "run", "in": ["."]}
    file = tmp_path / "errors.txt"
    file.write_text(f"error: {folder}/run: no\n", encoding="utf-8")
    (line,) = Tail(file, "errors", 1, plain=True, shown=shown).waiting()
    assert line["data"]["text"] == "error: run: no"


class Command:
    """A command that runs until it is asked to end."""

    exit_code: int | None = None
    resident_bytes = 2**20

    def __init__(self, _: Any, *, output: Path, errors: Path, **__: Any) -> None:
        output.touch()
        errors.touch()
        self.niceness = 0

    def stand_back(self, niceness: int) -> None:
        self.niceness = niceness

    def interrupt(self) -> None:
        self.exit_code = 130

    def end(self) -> None:
        self.exit_code = 137


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "Command", Command)


def lease(kind: Any, limit_s: float | None) -> Lease:
    return Lease(
        id="0" * 16,
        kind=kind,
        job="model: m\n",
        model_config_json=None,
        arguments=[],
        attempt=1,
        limit_s=limit_s,
        study=None,
    )


def ending(task: Task) -> tuple[int, str, bool]:
    assert task.has_ended
    said = task._ending()
    return said.exit_code, said.error, said.interrupted


@pytest.mark.parametrize("kind", ["plan", "run"])
def test_what_takes_too_long_or_too_much_is_ended_with_a_name(tmp_path: Path, kind: str) -> None:
    slow = Task(lease(kind, -1.0), tmp_path / "slow", 2**30, LOCAL)
    slow.look()
    code, error, interrupted = ending(slow)
    assert code == 130 and "took longer" in error and "operator" in error and not interrupted
    patient = Task(lease(kind, None), tmp_path / "patient", 2**30, LOCAL)
    patient.look()
    assert not patient.has_ended
    large = Task(lease(kind, 60.0), tmp_path / "large", 2**10, LOCAL)
    large.look()
    assert large.has_ended is (kind == "plan"), "a run's memory has limits of its own"
    if kind == "plan":
        assert "plan_memory" in ending(large)[1]


def test_what_is_cancelled_is_so_at_once_and_has_its_files_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its command does not end when it is asked to."""
    monkeypatch.setattr(Command, "interrupt", lambda _: None)
    monkeypatch.setattr(task_module, "CANCEL_S", -1.0)
    said: list[str] = []

    class Door:
        def beat(self, _name: str, works: list[str], _kept: Any) -> tuple[list[Beat], list[str]]:
            said.append(f"beat of {len(works)}")
            return [Beat(id=id, stop=True, lost=False) for id in works], []

        def finish(self, _name: str, _id: str, ending: Ending) -> None:
            said.append(f"ended by {ending.exit_code}")

        def keep_file(self, _name: str, _id: str, file: str, _content: bytes) -> None:
            said.append(file)

    door: Any = Door()
    capacity = Capacity(runs=1, plans=1, plan_memory=2**30, folders=2**20)
    loop = WorkerLoop(
        info=INFO,
        door=door,
        beats=door,
        root=tmp_path,
        capacity=capacity,
        engine=LOCAL,
    )
    task = loop._tasks[lease("run", None).id] = Task(lease("run", None), tmp_path, 2**30, LOCAL)
    task.run.path.mkdir()
    task.run.facts.touch()
    loop._beat()
    task.look()
    loop._tell()
    loop._beat()
    assert said == ["beat of 1", "ended by 137"] and loop._tasks, "its report is being made"
    assert loop._kinds() == ["plan"]
    assert task._report is not None
    task._report.exit_code = 0  # type: ignore[misc]
    (task.folder / "attempt-1" / "report.html").touch()
    loop._tell()
    assert said[2:] == ["report.txt", "report.html"] and not loop._tasks


@pytest.mark.parametrize(("kind", "niceness"), [("plan", 15), ("run", 0)])
def test_a_plan_stands_back_once_its_first_figures_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, niceness: int
) -> None:
    task = Task(lease(kind, None), tmp_path, 2**30, LOCAL)
    command: Any = task._command
    task.look()
    assert command.niceness == 0
    monkeypatch.setattr(task_module, "FIRST_S", -1.0)
    task.look()
    assert command.niceness == niceness


def test_a_folder_beyond_the_quota_ends_its_work(tmp_path: Path) -> None:
    capacity = Capacity(runs=1, plans=1, plan_memory=2**30, folders=2**20)
    door: Any = None
    loop = WorkerLoop(
        info=INFO,
        door=door,
        beats=door,
        root=tmp_path,
        capacity=capacity,
        engine=LOCAL,
    )
    task = Task(lease("run", None), tmp_path, 2**30, LOCAL)
    loop._tasks[task.lease.id] = task
    loop._kept()
    assert not task.has_ended
    (task.folder / "large").write_bytes(b"x" * 2**21)
    (task.folder / "link").symlink_to("/dev/zero")
    loop._kept()
    code, error, _ = ending(task)
    assert code == 130 and "its folder took more" in error
    assert task.folder.is_dir(), "what is under way is not deleted"
    del loop._tasks[task.lease.id]
    assert loop._kept() == [] and not task.folder.exists()


def test_a_service_has_only_a_workers_own_folders_removed(tmp_path: Path) -> None:
    class Door:
        def beat(self, *_: Any) -> tuple[list[Any], list[str]]:
            return [], ["../theirs", str(tmp_path / "theirs"), "mine", "."]

    root = tmp_path / "root"
    for folder in (tmp_path / "theirs", root / "mine", root / "other"):
        folder.mkdir(parents=True)
        (folder / "work.json").touch()
    capacity = Capacity(runs=1, plans=1, plan_memory=2**30, folders=2**20)
    door: Any = Door()
    loop = WorkerLoop(info=INFO, door=door, beats=door, root=root, capacity=capacity, engine=LOCAL)
    loop._forget()
    assert (tmp_path / "theirs" / "work.json").exists()
    assert [folder.name for folder in root.iterdir()] == ["other"]
    with pytest.raises(ValidationError, match="pattern"):
        Lease.model_validate({**lease("run", None).model_dump(), "id": "../theirs"})


def test_a_work_that_cannot_begin_is_told_as_failed(tmp_path: Path) -> None:
    class Door:
        endings: ClassVar[list[Ending]] = []

        def lease(self, *_: Any) -> Lease:
            return lease("run", None)

        def finish(self, _worker: str, _id: str, how: Ending) -> None:
            self.endings.append(how)

    door: Any = Door()
    root = tmp_path / "works"
    root.write_text("a file where a folder should be", encoding="utf-8")
    capacity = Capacity(runs=1, plans=1, plan_memory=2**30, folders=2**20)
    loop = WorkerLoop(info=INFO, door=door, beats=door, root=root, capacity=capacity, engine=LOCAL)
    loop._take()
    (told,) = door.endings
    assert told.exit_code == 3 and "cannot begin it: Not a directory" in told.error
    assert not loop._tasks


@pytest.mark.parametrize(
    ("at_once", "devices", "taken"), [(1, 1, 8), (1, 4, 2), (2, 2, 2), (1, 3, 3), (1, 16, 1)]
)
def test_as_many_runs_are_taken_as_there_are_places(
    tmp_path: Path, at_once: int, devices: int, taken: int
) -> None:
    capacity = Capacity(runs=8, plans=0, plan_memory=2**30, folders=2**20)
    engine, door = EngineOptions(name="ray", address="head:1", at_once=at_once), cast(Any, None)
    loop = WorkerLoop(
        info=INFO,
        door=door,
        beats=door,
        root=tmp_path,
        capacity=capacity,
        engine=engine,
    )
    while loop._kinds():
        given = lease("run", None).model_copy(update={"id": f"{len(loop._tasks):016x}"})
        given = given.model_copy(update={"devices": devices})
        loop._tasks[given.id] = Task(given, tmp_path, 2**30, engine)
    assert len(loop._tasks) == taken
    flags = ["--engine", "ray", "--address", "head:1", "--at-once", str(at_once)]
    assert all(task._arguments()[-6:] == flags for task in loop._tasks.values())
