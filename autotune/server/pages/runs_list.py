"""The queue of runs, and the last that have ended."""

import threading
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.live import Live
from autotune.server.pages.follow import fold
from autotune.server.pages.render import fragment, page
from autotune.server.pages.run_page import progress_of
from autotune.server.pages.run_progress import Probe, RunProgress
from autotune.server.service import Service
from autotune.server.store.filter import Filter

router = APIRouter(prefix="/runs", include_in_schema=False)
SHOWN = 30
_LOCK = threading.Lock()
_PROGRESS: WeakKeyDictionary[Live, dict[str, RunProgress]] = WeakKeyDictionary()
"""How far the runs of a service are: each look goes on from the one before."""


@router.get("")
def runs_page(request: Request, service: ServiceOf, holder: Caller) -> Response:
    """The queue, and the last runs."""
    return page(request, holder, "runs.html", **_queue(service))


@router.get("/queue")
def queue(service: ServiceOf, _: Caller) -> Response:
    """The part of it that changes."""
    return HTMLResponse(fragment("queue.html", **_queue(service)))


def _queue(service: Service) -> dict[str, Any]:
    works = service.works
    queued = works.search(Filter(kind="run", state="queued"), per_page=200)
    queued.sort(key=lambda work: (-work.priority, work.created))
    recent = works.search(Filter(kind="run"), per_page=SHOWN)
    running = works.search(Filter(kind="run", state="running"), per_page=200)
    return {
        "workers": [worker for worker, _ in service.queue.workers()],
        "running": running,
        "best": _best_so_far(service, [work.id for work in running]),
        "queued": queued,
        "ended": [work for work in recent if work.state not in ("queued", "running")],
        "plans": works.count(Filter(kind="plan", state="queued")),
    }


def _best_so_far(service: Service, running: list[str]) -> dict[str, Probe | None]:
    """Return the fastest probe yet of each run."""
    with _LOCK:
        before = _PROGRESS.get(service.live, {})
        now = {id: before.get(id) or _begun(service, id) for id in running}
        _PROGRESS[service.live] = now
        for id, progress in now.items():
            try:
                fold(service, id, progress)
            except (KeyError, TypeError, ValueError):  # events of another version
                progress.probes.clear()
        return {id: progress.best for id, progress in now.items()}


def _begun(service: Service, id: str) -> RunProgress:
    work = service.works.get(id)
    return RunProgress() if work is None else progress_of(work)
