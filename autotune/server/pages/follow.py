"""What changes on a page, as server-sent events: some events together, folded into a state, shown
by the same templates that made the page."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Protocol

from fastapi import Query
from fastapi.sse import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from autotune.plain_data import NONSENSE
from autotune.server.live import Live
from autotune.server.service import Service
from autotune.server.store.values import ENDED, Details, Event

TOGETHER_S = 0.25
"""Events within this time are shown together."""
UPDATE, END = "update", "end"
FromEvent = Annotated[int, Query(ge=0, le=10**9)]
"""The number of the last event that a page has."""


class Folded(Protocol):
    """A state that follows from events."""

    last: int

    def take(self, event: Event) -> None:
        """Go on by one event."""


def fold(service: Service, id: str, state: Folded, most: int | None = None) -> None:
    """Bring a state up to the last event, or to the one of a number."""
    while events := service.events.after(id, state.last):
        for event in events:
            if most is not None and event.number > most:
                return
            _take(state, event)


def _take(state: Folded, event: Event) -> None:
    """Go on by one event; what a worker made up, or has of another version, is passed over."""
    with contextlib.suppress(*NONSENSE):
        state.take(event)


async def updates(
    service: Service,
    id: str,
    after: int,
    state: Folded,
    render: Callable[[Details, Sequence[Event]], str],
    ended: Callable[[Details], str],
) -> AsyncIterator[ServerSentEvent]:
    """Yield the changes of a page after a number, to the end of the work.

    Args:
        render: makes the changes by some events, of a work that goes on.
        ended: makes the page of a work that has ended.
    """
    await run_in_threadpool(fold, service, id, state, after)
    async for events in _batches(service.live, id, after):
        work = await run_in_threadpool(service.works.get, id)
        if work is None:
            break
        for event in events:
            _take(state, event)
        text = await run_in_threadpool(render, work, events)
        yield ServerSentEvent(id=str(state.last), event=UPDATE, raw_data=text)
    work = await run_in_threadpool(service.works.get, id)
    if work is not None and work.state not in ENDED:
        return  # the service ends: the page comes again
    if work is not None:
        text = await run_in_threadpool(ended, work)
        yield ServerSentEvent(id=str(state.last), event=UPDATE, raw_data=text)
    yield ServerSentEvent(event=END, raw_data="")


async def _batches(live: Live, id: str, after: int) -> AsyncIterator[list[Event]]:
    """Yield events that come at about the same time; an empty list where none came for long."""
    queue: asyncio.Queue[list[Event] | None] = asyncio.Queue(maxsize=1000)

    async def pull() -> None:
        try:
            async for event in live.follow(id, after):
                await queue.put([] if event is None else [event])
        finally:
            await queue.put(None)

    task = asyncio.create_task(pull())
    try:
        events = await queue.get()
        while events is not None:
            await asyncio.sleep(TOGETHER_S)
            more: list[Event] | None = []
            while more is not None and not queue.empty():
                more = queue.get_nowait()
                events += more or []
            yield events
            events = None if more is None else await queue.get()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
