"""The API of workers: they lease works, beat, send events, and report how a work ended."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from autotune.server.access.callers import ServiceOf, Worker
from autotune.server.api.problems import problem
from autotune.server.store.events import Lines
from autotune.server.store.values import (
    NAME,
    Arrived,
    Beats,
    Ending,
    Kind,
    Lease,
    Value,
    WorkerInfo,
)

router = APIRouter(prefix="/worker", tags=["workers"])
Id = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
FileName = Literal["bundle.zip", "report.txt", "report.html"]
MOST_WORKS = 1000
"""Of a worker, and folders that it keeps."""
_LOST = "this work is another worker's now"


class Wanted(Value):
    """A worker's request for its next work."""

    worker: WorkerInfo
    kinds: list[Kind]
    works: list[Id] = Field(default=[], max_length=MOST_WORKS)
    """The works that it does. Others that it was given return to the queue after some seconds."""


class Doing(Value):
    """A worker's report of the works that it does."""

    name: str = Field(max_length=128, pattern=NAME)
    works: list[Id] = Field(max_length=MOST_WORKS)
    kept: list[Id] = Field(default=[], max_length=MOST_WORKS)
    """Works that it keeps folders of."""


class Ended(Value):
    """A worker's report of the end of a work."""

    worker: str = Field(max_length=128)
    ending: Ending


@router.post("/lease")
def lease(service: ServiceOf, _: Worker, wanted: Wanted) -> Lease | None:
    """Lease the next work that the worker can do; null: there is none."""
    service.queue.register(wanted.worker, wanted.works)
    service.queue.beat(wanted.worker.name, wanted.works)
    for id in service.queue.expire():
        service.live.changed(id)
    if not wanted.kinds:
        return None
    leased = service.queue.lease(wanted.worker, wanted.kinds)
    if leased is not None:
        service.live.changed(leased.id)
        limit_s = service.settings.allowed.seconds(leased.kind)
        return leased.model_copy(update={"limit_s": limit_s})
    return None


@router.post("/beat")
def beat(service: ServiceOf, _: Worker, doing: Doing) -> Beats:
    """Keep the leases."""
    beats = service.queue.beat(doing.name, doing.works)
    return Beats(works=beats, forget=service.works.deleted(doing.kept))


@router.post("/works/{id}/events")
def take_events(service: ServiceOf, _: Worker, id: Id, lines: Lines) -> Arrived:
    """Take lines; some may have come before."""
    count = service.events.take(id, lines)
    if count is None:
        raise problem(410, _LOST)
    service.live.changed(id)
    return Arrived(lines=count)


@router.post("/works/{id}/ending", status_code=204)
def finish(request: Request, service: ServiceOf, _: Worker, id: Id, ended: Ended) -> None:
    """Take the end of a work."""
    before = service.works.state(id)
    if not service.queue.finish(ended.worker, id, ended.ending):
        raise problem(410, _LOST)
    service.live.changed(id)
    work = service.works.get(id)
    if before == "running" and work is not None:  # else it was reported before
        request.app.state.metrics.ended(work)


@router.put("/works/{id}/files/{name}", status_code=204)
async def take_file(
    request: Request, service: ServiceOf, _: Worker, id: Id, name: FileName, worker: str
) -> None:
    """Take a file of a work."""
    content = await request.body()
    if not await run_in_threadpool(service.queue.keep_file, worker, id, name, content):
        raise problem(410, _LOST)
    service.live.changed(id)
