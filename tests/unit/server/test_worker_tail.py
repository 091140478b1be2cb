"""What a worker reads of growing files, and what the service makes of how commands end."""

import json
from pathlib import Path

import pytest

from autotune.server.store.database import Database, study_url
from autotune.server.store.queue import Queue
from autotune.server.store.values import Ending, NewWork, WorkerInfo
from autotune.server.store.works import Works
from autotune.server.worker.door import Away, Door
from autotune.server.worker.output import Shown, Tail

HERE = WorkerInfo(name="here:0", machine="here", device_kind="cuda", devices=[0], device_name="A")


def test_a_line_is_a_line_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    texts = ["a\u2028b", "c\x85d", "e\x0cf", "ü"]
    lines = [
        json.dumps({"utc": 1.0, "kind": "k", "data": {"t": t}}, ensure_ascii=False) for t in texts
    ]
    file.write_text("\n".join(lines) + "\nnot yet whole", encoding="utf-8")
    tail = Tail(file, "events", plain=False, shown=str)
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
        door.lease(HERE, ["run"], "")


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
    (line,) = Tail(file, "errors", plain=True, shown=shown).waiting()
    assert line["data"]["text"] == "error: run: no"
