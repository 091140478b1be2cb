"""Events as they come, for any number of readers: the last events of each work are kept in memory,
so that 200 pages of one work read the database once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from autotune.server.store.events import Events
from autotune.server.store.values import ENDED, Event
from autotune.server.store.works import Works

KEPT = 1000
"""Events of a work in memory."""
LOOK_S = 20.0
"""A reader without news looks for itself after so long."""


@dataclass
class _Tail:
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once, at the next change; then another one takes its place."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_old: bool = True
    ended: bool = False
    readers: int = 0


class Live:
    """The live events of a service."""

    def __init__(self, events: Events, works: Works, most: int) -> None:
        self._events, self._works, self._most = events, works, most
        self._tails: dict[str, _Tail] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.readers = 0
        self.closing = False

    def start(self) -> None:
        """Take the loop that readers wait in."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Let all readers end."""
        self.closing = True
        for id in list(self._tails):
            self.changed(id)

    @property
    def is_full(self) -> bool:
        """True if no more readers are taken."""
        return self.readers >= self._most

    def changed(self, id: str) -> None:
        """Wake readers: a work has new events or another state. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, id)

    def _wake(self, id: str) -> None:
        tail = self._tails.get(id)
        if tail is not None:
            tail.is_old = True
            tail.changed.set()
            tail.changed = asyncio.Event()

    async def follow(self, id: str, after: int) -> AsyncIterator[Event | None]:
        """Yield the events after a number, as they come, to the end of the work; None: nothing
        came for `LOOK_S`, so that a closed connection is noticed."""
        tail = self._tails.setdefault(id, _Tail())
        tail.readers, self.readers = tail.readers + 1, self.readers + 1
        try:
            while not self.closing:
                changed = tail.changed
                ended, events = await self._after(id, tail, after)
                for event in events:
                    after = event.number
                    yield event
                if events:
                    continue
                if ended:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), LOOK_S)
                except TimeoutError:
                    yield None
                    tail.is_old = True  # another process may have written something
        finally:
            tail.readers, self.readers = tail.readers - 1, self.readers - 1
            if not tail.readers:
                self._tails.pop(id, None)

    async def _after(self, id: str, tail: _Tail, number: int) -> tuple[bool, list[Event]]:
        """Return whether the work has ended, and the next events."""
        async with tail.reading:
            if tail.is_old:
                tail.is_old = False
                try:
                    await self._read(id, tail, number)
                except BaseException:  # this reader is cut off: the next one reads
                    tail.is_old = True
                    raise
        kept = tail.events
        if kept and kept[0].number <= number + 1:
            return tail.ended, [event for event in kept if event.number > number]
        return tail.ended, await run_in_threadpool(self._events.after, id, number)

    async def _read(self, id: str, tail: _Tail, number: int) -> None:
        """Bring the tail up to date. The state is read first: a work that had ended by then has no
        later events."""
        work = await run_in_threadpool(self._works.state, id)
        last = tail.events[-1].number if tail.events else number
        while True:
            events = await run_in_threadpool(self._events.after, id, last)
            tail.events.extend(event for event in events if event.number > last)
            if not events:
                break
            last = events[-1].number
        tail.ended = work is None or work in ENDED
