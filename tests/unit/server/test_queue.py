"""The queue: who gets what, what becomes of the dead, what is said twice."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event, inspect, text

from autotune.server.store import queue as queue_module
from autotune.server.store.database import Database, open_database, sqlite_url
from autotune.server.store.events import Events, Line, Lines
from autotune.server.store.queue import Queue
from autotune.server.store.values import Ending, Kind, NewWork, WorkerInfo
from autotune.server.store.works import Filter, Works

HERE = WorkerInfo(name="here:0", device_kind="cuda", devices=1, device_name="A")
THERE = HERE.model_copy(update={"name": "there:0"})
WORKS = "service_work"
DONE = Ending(attempt=1, exit_code=0, result={"outcome": "recommended", "bundle": None})


def new(kind: Kind = "run", **fields: object) -> NewWork:
    return NewWork.model_validate(
        {"kind": kind, "job": "model: m", "method": "sft", "model": "m", **fields}
    )


def lines(
    *texts: str, attempt: int = 1, source: str = "events", first: int = 0, record: int | None = None
) -> Lines:
    """What `HERE` sends."""
    return Lines(
        worker=HERE.name,
        attempt=attempt,
        record=record,
        source=source,
        first=first,
        lines=[Line(utc=1.0, kind="line", data={"text": text}) for text in texts],
    )


def test_first_come_first_served(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    first, second = works.add(new()), works.add(new())
    ahead = works.get(second.id)
    assert ahead is not None and ahead.ahead == 1
    leases = [queue.lease(HERE, ["run"]) for _ in range(3)]
    assert [lease and lease.id for lease in leases] == [first.id, second.id, None]


def test_a_database_of_an_earlier_version_keeps_its_works(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "old.db")
    old = open_database(url)
    work = Works(old).add(new(first_line="kept"))
    with old.engine.begin() as connection:  # as version 0001 had it
        for statement in (
            "DROP INDEX service_work_by_state",
            "ALTER TABLE service_work ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX service_work_by_state ON service_work (state, kind, priority, created)",
            "ALTER TABLE service_work ADD COLUMN machine VARCHAR(128)",
            "DROP TABLE service_workers",
            "CREATE TABLE service_workers (name VARCHAR(128) PRIMARY KEY, devices TEXT)",
            "INSERT INTO service_workers VALUES ('here:0', '[0]')",
            "UPDATE service_version SET version_num = '0001'",
        ):
            connection.execute(text(statement))
    old.close()
    opened = open_database(url)
    columns = {one["name"] for one in inspect(opened.engine).get_columns(WORKS)}
    assert not columns & {"priority", "machine"}
    assert Works(opened).get(work.id) is not None and len(Events(opened).after(work.id, 0)) == 1
    queue = Queue(opened)
    queue.register(HERE, [])
    assert queue.workers() == [HERE]
    lease = queue.lease(HERE, ["run"])
    assert lease is not None and (lease.id, lease.devices) == (work.id, 1)
    opened.close()


@pytest.mark.parametrize(("safe", "outcome"), [(True, "fits"), (False, "nothing_fits")])
def test_a_plan_of_several_machines_fits_where_it_is_safe_on_one(
    database: Database, safe: bool, outcome: str
) -> None:
    works, queue = Works(database), Queue(database)
    work = works.add(new("plan", device="h100,4xl40s"))
    queue.lease(HERE, ["plan"])
    result = {"machines": [{"safe": False}, "odd", {"safe": safe}], "lines": []}
    queue.finish(HERE.name, work.id, Ending(attempt=1, exit_code=1, result=result))
    ended = works.get(work.id)
    assert ended is not None and (ended.outcome, ended.device) == (outcome, "h100,4xl40s")


def test_a_run_goes_to_devices_that_it_fits_on(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    works.add(new(device_count=2))
    works.add(new(device_kind="cpu"))
    assert queue.lease(HERE, ["run"]) is None
    plan = works.add(new("plan", device_count=8))
    lease = queue.lease(HERE, ["run", "plan"])
    assert lease is not None and lease.id == plan.id


def test_a_work_knows_how_many_workers_can_take_it(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    plan, two, one = works.add(new("plan")), works.add(new(device_count=2)), works.add(new())
    cpu = works.add(new(device_kind="cpu"))

    def takers() -> list[int | None]:
        found = [works.get(work.id) for work in (plan, two, one, cpu)]
        return [work.takers for work in found if work is not None]

    assert takers() == [0, 0, 0, 0]
    queue.register(HERE, [])
    assert takers() == [1, 0, 1, 0]
    queue.register(THERE.model_copy(update={"devices": 2}), [])
    assert takers() == [2, 1, 2, 0]
    lease = queue.lease(HERE, ["run"])
    assert lease is not None and lease.id == one.id
    assert takers() == [2, 1, None, 0]


def test_a_list_of_works_does_not_read_what_they_came_to(database: Database) -> None:
    """Which may be megabytes of each."""
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])
    queue.finish(HERE.name, work.id, DONE)
    said: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    for page, ids in ((1, [work.id]), (2, [])):
        found = works.search(Filter(state="done"), page)
        assert [(one.id, one.outcome) for one in found] == [(id, "recommended") for id in ids]
    asked = [text for text in said if text.startswith("SELECT")]
    assert len(asked) == 2 and "service_work.outcome" in asked[0]
    assert not any(f"service_work.{name}," in asked[0] for name in ("job", "result", "text"))


def test_what_a_worker_that_was_started_anew_does_not_do_returns_soon(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue = Works(database), Queue(database)
    kept, lost = works.add(new()), works.add(new())
    for _ in (kept, lost):
        assert queue.lease(HERE, ["run"]) is not None
    queue.register(HERE, [kept.id, lost.id])
    queue.register(THERE, [])
    assert queue.expire() == [], "they are another's"
    queue.register(HERE, [kept.id])
    assert queue.expire() == [], "this request may be an earlier one"
    monkeypatch.setattr(queue_module, "SILENT_S", 0.0)
    queue.register(HERE, [kept.id])
    assert queue.expire() == [lost.id]
    again = queue.lease(HERE, ["run"])
    assert again is not None and (again.id, again.attempt) == (lost.id, 2)
    queue.register(HERE, [kept.id, lost.id])
    assert queue.expire() == []


def test_a_dead_lease_returns_to_the_queue_and_the_dead_are_not_heard(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue, events = Works(database), Queue(database), Events(database)
    work = works.add(new())
    monkeypatch.setattr(queue_module, "LEASE_S", -1.0)
    queue.lease(HERE, ["run"])
    assert queue.expire() == [work.id]
    monkeypatch.setattr(queue_module, "LEASE_S", 30.0)
    again = queue.lease(THERE, ["run"])
    assert again is not None and again.attempt == 2
    (beat,) = queue.beat(HERE.name, [work.id])
    assert beat.lost and beat.stop
    assert events.take(work.id, lines("late")) is None
    assert not queue.finish(HERE.name, work.id, DONE)
    assert not queue.keep_file(HERE.name, work.id, "bundle.zip", b"late")
    assert queue.finish(THERE.name, work.id, DONE.model_copy(update={"attempt": 2}))


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_late_worker_goes_on_and_a_clock_that_is_set_makes_it_late(
    database: Database, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    works, queue, events = Works(database), Queue(database), Events(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])
    for turn in range(queue_module.DEATHS):
        real = time.time
        monkeypatch.setattr(time, "time", lambda now=real: now() + jump_s)
        assert queue.expire() == ([work.id] if jump_s > 0 else [])
        assert events.take(work.id, lines("late", first=turn)) == turn + 1
        (beat,) = queue.beat(HERE.name, [work.id])
        assert not beat.lost and not beat.stop
        assert queue.lease(THERE, ["run"]) is None and queue.expire() == []
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + queue_module.LEASE_S + 1)
    assert queue.expire() == [work.id], "the beat counts by the clock as it is"
    assert queue.finish(HERE.name, work.id, DONE), "its end comes late, too"
    ended = works.get(work.id)
    assert ended is not None and (ended.state, ended.attempt) == ("done", 1)


def test_of_two_that_want_a_late_work_one_has_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue = Works(database), Queue(database)
    for _ in range(20):
        id = works.add(new()).id
        monkeypatch.setattr(queue_module, "LEASE_S", -1.0)
        assert queue.lease(HERE, ["run"])
        assert queue.expire() == [id]
        monkeypatch.setattr(queue_module, "LEASE_S", 60.0)
        with ThreadPoolExecutor(2) as threads:
            lease = threads.submit(queue.lease, THERE, ["run"])
            beat = threads.submit(queue.beat, HERE.name, [id])
        lost = beat.result()[0].lost
        assert lost == (lease.result() is not None)
        assert not lost or not queue.finish(HERE.name, id, DONE)


@pytest.mark.parametrize("how", ["dead", "given back", "resumed"])
def test_what_was_given_up_is_not_gone_on_with(
    database: Database, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A beat that was on its way comes after that."""
    monkeypatch.setattr(queue_module, "SILENT_S", 0.0)
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])
    if how == "dead":
        queue.register(HERE, [])
        assert queue.expire() == [work.id]
    elif how == "resumed":
        queue.finish(HERE.name, work.id, Ending(attempt=1, exit_code=3))
        assert works.resume(work.id)
    else:
        queue.finish(HERE.name, work.id, Ending(attempt=1, exit_code=130, interrupted=True))
    (beat,) = queue.beat(HERE.name, [work.id])
    assert beat.lost and works.state(work.id) == "queued"
    assert not queue.finish(HERE.name, work.id, DONE)


def test_what_kills_its_workers_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    monkeypatch.setattr(queue_module, "LEASE_S", -1.0)
    for _ in range(queue_module.DEATHS):
        assert queue.lease(HERE, ["run"]) is not None
        queue.expire()
    ended = works.get(work.id)
    assert ended is not None and ended.state == "failed" and "died 3 times" in str(ended.error)
    assert works.resume(work.id)
    queue.lease(HERE, ["run"])
    queue.expire()
    again = works.get(work.id)
    assert again is not None and again.state == "queued"


def test_an_interrupted_work_goes_on_and_a_cancelled_one_does_not(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])
    stopped = Ending(attempt=1, exit_code=130, interrupted=True)
    assert queue.finish(HERE.name, work.id, stopped)
    assert works.state(work.id) == "queued"
    queue.lease(HERE, ["run"])
    assert works.cancel(work.id)
    (beat,) = queue.beat(HERE.name, [work.id])
    assert beat.stop and not beat.lost
    queue.finish(HERE.name, work.id, Ending(attempt=2, exit_code=130))
    assert works.state(work.id) == "cancelled"
    assert not works.cancel(work.id)


def test_an_ending_that_is_said_twice_counts_once(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])
    assert queue.finish(HERE.name, work.id, DONE)
    other = DONE.model_copy(update={"exit_code": 1})
    assert queue.finish(HERE.name, work.id, other)
    ended = works.get(work.id)
    assert ended is not None and (ended.exit_code, ended.outcome) == (0, "recommended")


def test_no_event_is_lost_or_doubled_when_lines_are_sent_again(database: Database) -> None:
    works, queue, events = Works(database), Queue(database), Events(database)
    work = works.add(new())
    queue.lease(HERE, ["run"])

    def take(source: str, first: int, *texts: str) -> int | None:
        return events.take(work.id, lines(*texts, source=source, first=first))

    assert take("events", 0, "a", "b") == 2
    assert take("errors", 0, "x") == 1
    assert take("events", 0, "a", "b", "c") == 3
    assert take("events", 5, "f") == 3, "a gap is not taken: the lines between come again"
    assert take("events", 3, "d") == 4
    got = events.after(work.id, 0)
    assert [event.data["text"] for event in got] == ["a", "b", "x", "c", "d"]
    assert [event.number for event in got] == [1, 2, 3, 4, 5]
    assert [event.number for event in events.after(work.id, 3)] == [4, 5]


def test_what_a_killed_worker_did_not_send_comes_with_the_next_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, queue, events = Works(database), Queue(database), Events(database)
    work = works.add(new())
    monkeypatch.setattr(queue_module, "LEASE_S", -1.0)
    queue.lease(HERE, ["run"])
    events.take(work.id, lines("a"))
    assert queue.expire() == [work.id]
    monkeypatch.setattr(queue_module, "LEASE_S", 30.0)
    again = queue.lease(HERE, ["run"])
    assert again is not None and again.attempt == 2
    assert events.take(work.id, lines("a", "b", attempt=2, record=1)) == 2
    assert events.take(work.id, lines("c", attempt=2)) == 1
    assert [event.data.get("text") for event in events.after(work.id, 0)][-3:] == ["a", "b", "c"]


def test_only_what_has_ended_is_deleted_and_all_of_it(database: Database) -> None:
    works, queue, events = Works(database), Queue(database), Events(database)
    work, waiting = works.add(new()), works.add(new())
    queue.lease(HERE, ["run"])
    events.take(work.id, lines("a"))
    queue.keep_file(HERE.name, work.id, "bundle.zip", b"zip")
    assert works.delete([work.id, waiting.id]) == 0
    queue.finish(HERE.name, work.id, DONE)
    assert works.file(work.id, "bundle.zip") == b"zip"
    assert works.delete([work.id, waiting.id]) == 1
    assert works.get(work.id) is None and events.after(work.id, 0) == []
    assert works.file(work.id, "bundle.zip") is None
    assert works.deleted([work.id, waiting.id, "unknown"]) == [work.id]


def test_a_variation_outlives_what_it_is_a_variation_of(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    work = works.add(new())
    variation = works.add(new(parent=work.id))
    queue.lease(HERE, ["run"])
    queue.finish(HERE.name, work.id, DONE)
    assert works.delete([work.id]) == 1
    kept = works.get(variation.id)
    assert kept is not None and kept.parent is None


def test_search_finds_by_parts_of_names_and_takes_signs_as_they_are(database: Database) -> None:
    works = Works(database)
    works.add(new(model="Qwen/Qwen2.5-7B", device="NVIDIA H100 80GB"))
    works.add(new("plan", model="llama_100%"))
    assert works.count(Filter(text="qwen h100")) == 1
    assert works.count(Filter(text="100%")) == 1
    assert works.count(Filter(text="a_1")) == 1
    assert works.count(Filter(text="_")) == 1
    assert works.count(Filter(kind="run", text="llama")) == 0
    assert [work.model for work in works.search(Filter())] == ["llama_100%", "Qwen/Qwen2.5-7B"]


def test_what_measured_nothing_can_go_on_and_what_has_an_answer_cannot(database: Database) -> None:
    works, queue = Works(database), Queue(database)
    for exit_code, resumable in ((4, True), (0, False), (1, False), (3, True)):
        work = works.add(new())
        assert not works.resume(work.id), "it waits"
        lease = queue.lease(HERE, ["run"])
        assert lease is not None
        assert queue.finish(HERE.name, work.id, Ending(attempt=1, exit_code=exit_code))
        assert works.resume(work.id) is resumable
        works.cancel(work.id)
