"""The page of a plan: live while it is made, then its whole answer."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from autotune.errors import AutotuneError
from autotune.facts.kind_names import find_kind
from autotune.job.yaml_file import parse_yaml
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import Refusal
from autotune.server.api.work import After, Id, cancel, details, resume, room_for
from autotune.server.pages.bundle_files import bundle_files, launch_command
from autotune.server.pages.follow import FromEvent, fold, updates
from autotune.server.pages.memory import memory_bar, slides_of
from autotune.server.pages.plan_progress import PlanProgress
from autotune.server.pages.render import fragment, page, refresh
from autotune.server.service import Service
from autotune.server.store.filter import Filter
from autotune.server.store.values import ENDED, Details, Event
from autotune.server.submission import Submission, accepted
from autotune.units import parse_bytes

router = APIRouter(prefix="/plans", include_in_schema=False)
LENGTHS = "lengths.json"
SHOWN = 20
"""Choices of the table."""
WAIT_S = 900.0
"""So long after its end the estimates by length of a plan are looked for."""


@router.get("/{id}")
def plan_page(request: Request, service: ServiceOf, holder: Caller, id: Id) -> Response:
    """A plan."""
    work = details(service, id, "plan")
    state = PlanProgress()
    fold(service, id, state)
    values = ended_values(service, work) if work.state in ENDED else live_values(work, state)
    follows = not service.live.is_full
    return page(request, holder, "plan_page.html", **values, oob=False, follows=follows)


@router.get(
    "/{id}/events", response_class=EventSourceResponse, dependencies=[Depends(room_for("plan"))]
)
async def follow_plan(
    service: ServiceOf, _: Caller, id: Id, last_event_id: After = None, after: FromEvent = 0
) -> AsyncIterator[ServerSentEvent]:
    """What changes on the page of a plan."""
    state = PlanProgress()

    def render(work: Details, _: Sequence[Event]) -> str:
        return fragment("plan_update.html", **live_values(work, state))

    def ended(work: Details) -> str:
        return fragment("plan_work.html", **ended_values(service, work), oob=True, follows=True)

    async for event in updates(service, id, int(last_event_id or after), state, render, ended):
        yield event


@router.get("/{id}/sliders")
def sliders(service: ServiceOf, _: Caller, id: Id) -> Response:
    """The sliders over length, once they are estimated; nothing while they may still come."""
    work = details(service, id, "plan")
    slides = slides_of(work.result, _lengths(service, id)) if work.result else None
    if slides is None or (_is_new(work) and not slides.whole):
        return Response(status_code=204)
    return HTMLResponse(fragment("sliders.html", work=work, slides=slides, waits=False))


@router.post("/{id}/cancel")
def cancel_plan(service: ServiceOf, _: Caller, id: Id) -> Response:
    """End a plan."""
    cancel(service, details(service, id, "plan"))
    return refresh()


@router.post("/{id}/resume")
def resume_plan(service: ServiceOf, _: Caller, id: Id) -> Response:
    """Make a plan again that was cancelled or has failed."""
    resume(service, details(service, id, "plan"))
    return refresh()


def live_values(work: Details, state: PlanProgress) -> dict[str, Any]:
    """Return what the page of a plan that is being made shows."""
    bar = None
    if state.best is not None:
        best = state.best
        bar = memory_bar(best["parts"], best["peak_memory_bytes"], limit_of(work))
    return {"work": work, "state": state, "bar": bar, "ended": False}


def ended_values(service: Service, work: Details) -> dict[str, Any]:
    """Return what the page of a plan that has ended shows."""
    result = work.result
    slides = None if result is None else slides_of(result, _lengths(service, work.id))
    files = bundle_files(service.works.file(work.id, "bundle.zip"))
    return {
        "work": work,
        "ended": True,
        "result": result,
        "lines": [] if result is None else spoken(result),
        "slides": slides,
        "waits": slides is not None and not slides.whole and _is_new(work),
        "choices": [] if result is None else result["choices"][:SHOWN],
        "files": files,
        "launch": launch_command(work.id, files),
        "no_run": _why_no_run(service, work),
        "runs": _runs_like(service, work),
    }


def spoken(result: dict[str, Any]) -> list[str]:
    """Return what is said of the answer, without the ways out, which have a part of the page."""
    lines: list[str] = result["lines"]
    if result["advice"] is None:
        return lines
    until = next((n for n, line in enumerate(lines) if line.startswith("What ")), len(lines))
    return lines[:until]


def limit_of(work: Details) -> int | None:
    """Return what a process may take, as far as that is known before the plan says it."""
    try:
        devices = parse_yaml(work.job, "job")[0].get("devices")
        memory = devices.get("memory") if isinstance(devices, dict) else None
        if memory is not None:
            return parse_bytes(memory)
        kind = find_kind(work.device) if work.device not in ("", "cpu") else None
    except (AutotuneError, ValueError):
        return None
    return None if kind is None else kind.usable_bytes


def _is_new(work: Details) -> bool:
    """True if its sliders may still come."""
    return work.state == "done" and time.time() - (work.ended or 0.0) < WAIT_S


def _lengths(service: Service, id: str) -> dict[str, Any] | None:
    content = service.works.file(id, LENGTHS)
    if content is None:
        return None
    data = json.loads(content)
    return data if isinstance(data, dict) else None


def _why_no_run(service: Service, work: Details) -> str | None:
    """Return why this job cannot be run here; None: it can."""
    config = service.works.model_config_json(work.id)
    submission = Submission(job=work.job, model_config_json=config)
    try:
        accepted("run", submission, service.settings.allowed, work.submitter)
    except AutotuneError as error:
        return error.problems[0].what
    except Refusal as refusal:
        return refusal.item.what
    return None


def _runs_like(service: Service, work: Details) -> list[Any]:
    """Runs of the same model."""
    wanted = Filter(kind="run", state="done", text=work.model.rpartition("/")[2][:100])
    return service.works.search(wanted, per_page=3)
