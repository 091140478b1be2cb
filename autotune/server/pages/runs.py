"""The queue of runs, the last that have ended, and the form that asks for another."""

import threading
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from autotune.errors import user_error
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.work import details, submit
from autotune.server.live import Live
from autotune.server.pages.follow import fold
from autotune.server.pages.plan_form import FromWork, known_parent
from autotune.server.pages.render import fragment, page, redirect
from autotune.server.pages.run_page import progress_of
from autotune.server.pages.run_progress import Probe, RunProgress
from autotune.server.service import Service
from autotune.server.store.values import Value
from autotune.server.store.works import Filter
from autotune.server.submission import Submission

router = APIRouter(prefix="/runs", include_in_schema=False)
SHOWN = 30
_LOCK = threading.Lock()
_PROGRESS: WeakKeyDictionary[Live, dict[str, RunProgress]] = WeakKeyDictionary()
"""The progress of the runs of a service: each look continues the one before."""
START = """\
model: /data/models/my-model
dataset: {lengths: {max: 2048, p50: 300, p99: 1500}}
method: sft
tuning: lora
global_batch_size: 64
max_length: 2048
budget: 20m
"""


@router.get("")
def runs_page(request: Request, service: ServiceOf, holder: Caller) -> Response:
    """Show the queue and the last runs."""
    return page(request, holder, "runs.html", **_queue(service))


@router.get("/queue")
def queue(service: ServiceOf, _: Caller) -> Response:
    """Show the part of the queue that changes."""
    return HTMLResponse(fragment("queue.html", **_queue(service)))


def _queue(service: Service) -> dict[str, Any]:
    works = service.works
    queued = works.search(Filter(kind="run", state="queued"), per_page=200)
    queued.sort(key=lambda work: work.created)
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
            fold(service, id, progress)
        return {id: progress.best for id, progress in now.items()}


def _begun(service: Service, id: str) -> RunProgress:
    work = service.works.get(id)
    return RunProgress() if work is None else progress_of(work)


class RunForm(Value):
    """The form, as a browser sends it."""

    job: str = ""
    """The job file; empty: the parent's."""
    config: str = ""
    parent: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""


@router.get("/new")
def new_page(
    request: Request, service: ServiceOf, holder: Caller, origin: FromWork = ""
) -> Response:
    """Show the form, with a first job or that of another work."""
    work = service.works.get(origin) if origin else None
    form = RunForm(job=START)
    if work is not None:
        config = service.works.model_config_json(work.id) or ""
        form = RunForm(job=work.job, config=config, parent=work.id)
    allowed = service.settings.allowed
    return page(request, holder, "run_form.html", form=form, origin=work, allowed=allowed)


@router.post("")
async def ask(service: ServiceOf, holder: Caller, form: Annotated[RunForm, Form()]) -> Response:
    """Put a run into the queue, and go to its page."""
    return await run_in_threadpool(_ask, service, form, holder.name)


def _ask(service: Service, form: RunForm, submitter: str) -> Response:
    job, config = form.job, form.config
    if not job.strip() and form.parent:
        job = details(service, form.parent).job
        config = service.works.model_config_json(form.parent) or ""
    if not job.strip():
        raise user_error("a job is missing", where="job", hint="paste a job file")
    submission = Submission(
        job=job,
        model_config_json=config.strip() or None,
        parent=known_parent(service, form.parent),
    )
    return redirect(f"/runs/{submit(service, 'run', submission, submitter).id}")
