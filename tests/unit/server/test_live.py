"""Readers that follow a work: each hears every event once, and none of them spins."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from autotune.server.live import Live
from autotune.server.store.database import Database
from autotune.server.store.events import Events, Line
from autotune.server.store.queue import Queue
from autotune.server.store.values import Ending, Event, NewWork, WorkerInfo
from autotune.server.store.works import Works

HERE = WorkerInfo(name="here:0", machine="here", device_kind="cuda", devices=[0], device_name="A")


class Counted(Events):
    """Counts how often the database is asked."""

    asked = 0

    def after(self, id: str, number: int) -> list[Event]:
        self.asked += 1
        return super().after(id, number)


class Bench:
    """A work that a worker does, and its readers."""

    def __init__(self, database: Database) -> None:
        self.works, self.queue, self.events = Works(database), Queue(database), Counted(database)
        self.live = Live(self.events, self.works, 100)
        self.id = self.works.add(NewWork(kind="run", job="model: m", method="sft", model="m")).id
        self.said = 0

    def say(self, count: int) -> None:
        lines = [Line(utc=1.0, kind="line", data={"text": str(n)}) for n in range(count)]
        assert self.events.take(HERE.name, self.id, 1, "events", self.said, lines)
        self.said += count
        self.live.changed(self.id)

    async def read(self, after: int = 0) -> list[int]:
        found = self.live.follow(self.id, after)
        return [event.number async for event in found if event is not None]

    def run(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def played() -> None:
            self.live.start()
            await asyncio.wait_for(scene(), 60)

        asyncio.run(played())


def test_many_readers_hear_each_event_once_and_the_end_at_once(database: Database) -> None:
    bench = Bench(database)
    assert bench.queue.lease(HERE, ["run"])

    async def scene() -> None:
        readers = [asyncio.create_task(bench.read(after)) for after in (0, 0, 0, 5, 17)]
        for count in (1, 3, 700, 1, 40):
            await asyncio.to_thread(bench.say, count)
            await asyncio.sleep(0.02)
        await asyncio.to_thread(bench.queue.finish, HERE.name, bench.id, ENDED)
        bench.live.changed(bench.id)
        heard = await asyncio.wait_for(asyncio.gather(*readers), 10)
        assert heard == [list(range(after + 1, 746)) for after in (0, 0, 0, 5, 17)]

    bench.run(scene)


def test_who_waits_for_a_work_that_waits_asks_for_nothing(database: Database) -> None:
    bench = Bench(database)

    async def scene() -> None:
        readers = [asyncio.create_task(bench.read()) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert bench.events.asked <= 6
        bench.live.close()
        assert await asyncio.gather(*readers) == [[], [], []]

    bench.run(scene)


ENDED = Ending(attempt=1, exit_code=0)
