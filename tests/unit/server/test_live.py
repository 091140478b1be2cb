"""Readers that follow a work: each hears every event once, and none of them spins."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from autotune.server.live import Live
from autotune.server.store.database import Database
from autotune.server.store.events import Events, Line, Lines
from autotune.server.store.queue import Queue
from autotune.server.store.values import Ending, Event, NewWork, WorkerInfo
from autotune.server.store.works import Works

HERE = WorkerInfo(name="here:0", device_kind="cuda", devices=1, device_name="A")


class Counted(Events):
    """Counts how often the database is asked."""

    asked = 0

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.open = threading.Event()
        """Whoever asks waits for it."""
        self.open.set()

    def after(self, id: str, number: int) -> list[Event]:
        self.asked += 1
        self.open.wait(60)
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
        assert self.events.take(
            self.id,
            Lines(worker=HERE.name, attempt=1, source="events", first=self.said, lines=lines),
        )
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


def test_who_is_cut_off_and_comes_back_hears_each_event_once(database: Database) -> None:
    bench = Bench(database)
    assert bench.queue.lease(HERE, ["run"])

    async def scene() -> None:
        heard: list[list[int]] = [[] for _ in range(20)]
        gone = asyncio.Event()

        async def cut(numbers: list[int], seed: int) -> None:
            chance = random.Random(seed)
            while not gone.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(read_on(numbers), chance.random() / 50)
            await read_on(numbers)

        async def read_on(numbers: list[int]) -> None:
            async for event in bench.live.follow(bench.id, numbers[-1] if numbers else 0):
                if event is not None:
                    numbers.append(event.number)

        readers = [asyncio.create_task(cut(one, seed)) for seed, one in enumerate(heard[1:])]
        steady = asyncio.create_task(read_on(heard[0]))
        for _ in range(30):
            await asyncio.to_thread(bench.say, 40)
        await asyncio.to_thread(bench.queue.finish, HERE.name, bench.id, ENDED)
        bench.live.changed(bench.id)
        gone.set()
        await asyncio.wait_for(asyncio.gather(steady, *readers), 10)
        assert heard == [list(range(1, 1201))] * 20

    bench.run(scene)


def test_who_is_cut_off_while_it_reads_for_all_takes_nothing_from_them(database: Database) -> None:
    bench = Bench(database)
    assert bench.queue.lease(HERE, ["run"])

    async def scene() -> None:
        found = [bench.live.follow(bench.id, 0) for _ in range(2)]
        await asyncio.to_thread(bench.say, 1)
        assert [await anext(one) for one in found]
        first, second = (asyncio.create_task(anext(one)) for one in found)
        await asyncio.sleep(0.2)
        bench.events.open.clear()
        asked = bench.events.asked
        await asyncio.to_thread(bench.say, 1)
        while bench.events.asked == asked:
            await asyncio.sleep(0.01)
        first.cancel()
        bench.events.open.set()
        event = await asyncio.wait_for(second, 10)  # less than `LOOK_S`
        assert event is not None and event.number == 2
        await found[1].aclose()

    bench.run(scene)


ENDED = Ending(attempt=1, exit_code=0)
