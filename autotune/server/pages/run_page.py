"""The page of a run: its probes as they come, then its recommendation."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import ValidationError

from autotune.errors import AutotuneError
from autotune.job.job import Budget, as_budget
from autotune.job.yaml_file import parse_yaml
from autotune.process.run_folder import RunFolder
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.work import (
    TEXT,
    After,
    Id,
    cancel,
    details,
    page_response,
    resume,
    room_for,
)
from autotune.server.pages.follow import FromEvent, fold, updates
from autotune.server.pages.render import bundle_files, fragment, launch_command, page, refresh
from autotune.server.pages.run_progress import RunProgress, plot_of
from autotune.server.service import Service
from autotune.server.store.values import ENDED, Details, Event
from autotune.server.worker.output import Shown

router = APIRouter(prefix="/runs", include_in_schema=False)
WORKS = "works"
"""The folder of this machine's worker, in that of the service."""
_MOST_LOG = 40_000
_Number = Annotated[int, Path(ge=0, le=99_999)]


@router.get("/{id}")
def run_page(request: Request, service: ServiceOf, holder: Caller, id: Id) -> Response:
    """Show a run."""
    work = details(service, id, "run")
    state = progress_of(work)
    fold(service, id, state)
    values = values_of(service, work, state)
    follows = not service.live.is_full
    return page(request, holder, "run_page.html", **values, oob=False, follows=follows)


@router.get(
    "/{id}/events", response_class=EventSourceResponse, dependencies=[Depends(room_for("run"))]
)
async def follow_run(
    service: ServiceOf, _: Caller, id: Id, last_event_id: After = None, after: FromEvent = 0
) -> AsyncIterator[ServerSentEvent]:
    """Stream the changes of a run's page."""
    state = RunProgress()

    def render(work: Details, events: Sequence[Event]) -> str:
        first = events[0].number if events else state.last + 1
        probes = [probe for probe in state.finished if probe.event >= first]
        lines = [line for line in state.lines if line[0] >= first]
        values = {**values_of(service, work, state), "probes": probes, "lines": lines}
        return fragment("run_update.html", **values)

    def ended(work: Details) -> str:
        return fragment("run_work.html", **values_of(service, work, state), oob=True, follows=True)

    state.headroom = progress_of(details(service, id, "run")).headroom
    async for event in updates(service, id, int(last_event_id or after), state, render, ended):
        yield event


@router.post("/{id}/cancel")
def cancel_run(service: ServiceOf, _: Caller, id: Id) -> Response:
    """End a run, as Ctrl-C does."""
    cancel(service, details(service, id, "run"))
    return refresh()


@router.post("/{id}/resume")
def resume_run(service: ServiceOf, _: Caller, id: Id) -> Response:
    """Go on with a run."""
    resume(service, details(service, id, "run"))
    return refresh()


@router.get("/{id}/report")
def report_page(request: Request, service: ServiceOf, holder: Caller, id: Id) -> Response:
    """Show the report of a run."""
    work = details(service, id, "run")
    drawn = page_response(service, id)
    if drawn is not None:
        return drawn
    report = service.works.file(id, TEXT)
    text = None if report is None else report.decode("utf-8", errors="replace")
    return page(request, holder, "report.html", work=work, text=text)


@router.get("/{id}/probes/{number}/log")
def probe_log(service: ServiceOf, _: Caller, id: Id, number: _Number) -> Response:
    """Show the end of a probe's log, where its worker is on this machine."""
    details(service, id, "run")
    works = service.folder / WORKS
    folder, shown = RunFolder(path=works / id / "run").probe(number).path, Shown(works, id)
    texts = []
    for name in ("stdout.log", "stderr.log"):
        file = folder / name
        if file.is_file() and not file.is_symlink():
            text = file.read_text(encoding="utf-8", errors="replace")[-_MOST_LOG:].strip()
            texts.append(shown.text(text))
    return HTMLResponse(fragment("log.html", there=folder.is_dir(), text="\n".join(texts).strip()))


def progress_of(work: Details) -> RunProgress:
    """Return a run at its beginning."""
    headroom = _job(work).get("headroom", 0.1)
    return RunProgress(headroom=headroom if isinstance(headroom, float) else 0.1)


def budget_of(work: Details) -> Budget:
    """Return the budget of its search."""
    try:
        return Budget.model_validate(as_budget(_job(work).get("budget", {})))
    except (ValidationError, ValueError):
        return Budget()


def values_of(service: Service, work: Details, state: RunProgress) -> dict[str, Any]:
    """Return the values of a run's page, live or ended."""
    ended = work.state in ENDED
    archive = service.works.file(work.id, "bundle.zip") if ended else None
    files = bundle_files(archive)
    budget = budget_of(work)
    spent = max(state.searched / budget.probes, state.probing_s / 60 / budget.minutes)
    return {
        "work": work,
        "state": state,
        "ended": ended,
        "probes": state.finished,
        "lines": state.lines,
        "budget": budget,
        "spent": round(min(spent, 1.0), 3),
        "plot": plot_of(state),
        "result": work.result,
        "files": files,
        "launch": launch_command(work.id, files),
    }


def _job(work: Details) -> dict[str, Any]:
    try:
        return parse_yaml(work.job, "job")[0]
    except AutotuneError:  # it was taken, so it is sound
        return {}
