"""The page of a plan or a run: its state and its events while it is made, then what it came to.

A plan's answer is what `autotune plan` prints, from its JSON; a run's is the HTML of its report,
in a frame of its own.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from autotune.errors import AutotuneError
from autotune.job.yaml_file import parse_yaml
from autotune.plain_data import NONSENSE
from autotune.report.live_rows import LiveState, rows
from autotune.report.parts import ordered, tone_of
from autotune.report.words import legend
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.access.job_rules import CONFIG
from autotune.server.api.problems import problem
from autotune.server.api.work import TEXT, After, Id, Text, cancel, page_response, resume, room_for
from autotune.server.pages.render import bundle_files, fragment, launch_command, page, refresh
from autotune.server.service import Service
from autotune.server.store.values import ENDED, Details, Event, Kind

router = APIRouter(include_in_schema=False)
TOGETHER_S = 0.25
"""Events within this time are shown together."""
LINES = 400
"""Lines that a page shows at first."""
WIDTH = 1000.0
"""Of a bar of memory."""
FromEvent = Annotated[int, Query(ge=0, le=10**9)]
"""The number of the last event that a page has."""
AnyId = Annotated[str, Path(max_length=100, pattern=Text)]
"""An id as a link has it, which may be cut short."""
_LIMITS = ("--deadline", "--at-most", "--prices")
_COMMANDS = ("`--", "`autotune ")
"""A line with one of these is of the command line."""


class WorkState:
    """The state of a work, as it follows from its events.

    Attributes:
        lines: the last ones that its command printed, each with the number of its event.
        last: the number of the last event.
    """

    def __init__(self, work: Details) -> None:
        self._state = LiveState(
            began=work.started or work.created,
            method=work.method,
            hears_steps=False,
        )
        self.lines: deque[tuple[int, str]] = deque(maxlen=LINES)
        self.last = 0

    def take(self, event: Event) -> None:
        """Go on by one event; one that a worker made up, or has of another version, is passed
        over."""
        self.last = event.number
        with contextlib.suppress(*NONSENSE):
            if event.kind == "line":
                self.lines.append((event.number, str(event.data["text"])))
            else:
                self._state.take(event.kind, event.data, event.utc)

    def rows(self, work: Details) -> list[tuple[str, str]]:
        """Return the name and the text of each row of the state, the most important first."""
        shown: list[tuple[str, str]] = []
        with contextlib.suppress(*NONSENSE):
            shown = rows(self._state, time.time())
        if work.state == "queued":
            shown = [("now", _queue_text(work)), *(row for row in shown if row[0] == "best")]
        return shown


def _queue_text(work: Details) -> str:
    if work.takers == 0:
        return "no worker that is here can take it: it waits until one comes"
    if work.ahead:
        return f"{work.ahead} {'is' if work.ahead == 1 else 'are'} before it in the queue"
    return "it is the next in the queue"


def _fold(service: Service, id: str, state: WorkState, most: int | None = None) -> None:
    """Bring a state up to the last event, or to the one of a number."""
    while events := service.events.after(id, state.last):
        for event in events:
            if most is not None and event.number > most:
                return
            state.take(event)


def find_work(service: Service, id: str, kind: Kind) -> Details:
    """Return a work.

    Raises:
        Refusal: there is none.
    """
    work = service.works.get(id)
    if work is None or work.kind != kind:
        hint = "its link may be cut short, or it was deleted: look for it among all works"
        raise problem(404, f"there is no {kind} `{id}`", hint)
    return work


def _values(service: Service, work: Details, state: WorkState) -> dict[str, Any]:
    ended, result = work.state in ENDED, work.result or {}
    files = bundle_files(service.works.file(work.id, "bundle.zip")) if ended else []
    lines = [line for line in result.get("lines", []) if not any(c in line for c in _COMMANDS)]
    if result.get("advice"):  # the ways out are shown below, each with a button
        lines = lines[: next((n for n, ln in enumerate(lines) if ln.startswith("What ")), None)]
    table = result.get("table") or {"heads": [], "rows": [], "notes": []}
    cells = [cell for row in table["rows"] for cell in row]
    return {
        "work": work,
        "ended": ended,
        "state": state,
        "rows": [] if ended else state.rows(work),
        "result": result,
        "machines": result.get("machines") or [],
        "verified": bool(result.get("verified")),
        "ways": (result.get("advice") or {"ways": []})["ways"],
        "table": table,
        "notes": result.get("notes") or [],
        "lines": lines,
        "log": list(state.lines),
        "legend": legend([*lines, *table["heads"], *cells]),
        "bar": _memory_bar(result) if work.kind == "plan" else None,
        "limits": [
            one.removeprefix("--").replace("=", " ")
            for one in work.arguments
            if one.startswith(_LIMITS)
        ],
        "runnable": _can_run(service, work),
        "origin": list(_leading_comments(work.job)),
        "files": files,
        "launch": launch_command(work.id, files),
        "follows": not service.live.is_full,
    }


def _can_run(service: Service, work: Details) -> bool:
    """True if its model is here, or may be downloaded: a built-in name is enough for a plan."""
    with contextlib.suppress(AutotuneError):
        model = str(parse_yaml(work.job, "job")[0].get("model"))
        return service.settings.allowed.hub or model.startswith("/") or model == CONFIG
    return False


def _leading_comments(job: str) -> Iterator[str]:
    """Yield the comments that a job begins with: where it is from, and what was not taken over."""
    for line in job.splitlines():
        if not line.startswith("#"):
            return
        if text := line.lstrip("# "):
            yield text


def _memory_bar(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parts of the answer's peak (of what is nearest to one), each with its place in a
    bar; None: nothing was estimated."""
    choices = result.get("choices")
    if not choices:
        return None
    first, limit = choices[0], result["device"]["limit_bytes"]
    parts = {name: size for name, size in first["parts"].items() if size > 0}
    scale = max(sum(parts.values()), limit, 1)
    places, x = [], 0.0
    for name in ordered(parts):
        width = WIDTH * parts[name] / scale
        places.append((name, parts[name], round(x, 2), round(width, 2), tone_of(name)))
        x += width
    mark = round(WIDTH * limit / scale, 2)
    return {"parts": places, "limit": limit, "mark": mark, "peak": first["peak_memory_bytes"]}


def _add_routes(kind: Kind) -> None:
    at = f"/{kind}s/{{id}}"

    @router.get(at, name=f"{kind}_page")
    def _show(request: Request, service: ServiceOf, holder: Caller, id: AnyId) -> Response:
        work = find_work(service, id, kind)
        state = WorkState(work)
        _fold(service, id, state)
        return page(request, holder, "work_page.html", **_values(service, work, state), oob=False)

    @router.get(
        f"{at}/events",
        name=f"follow_{kind}_page",
        response_class=EventSourceResponse,
        dependencies=[Depends(room_for(kind))],
    )
    async def _follow(
        service: ServiceOf, _: Caller, id: Id, last_event_id: After = None, after: FromEvent = 0
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in _updates(service, id, int(last_event_id or after)):
            yield event

    @router.get(f"{at}/again", name=f"{kind}_again")
    def _taken_up(service: ServiceOf, _: Caller, id: Id) -> Response:
        """Load the page of a work anew that had ended and was taken up again elsewhere."""
        return Response(status_code=204) if service.works.state(id) in ENDED else refresh()

    @router.post(f"{at}/cancel", name=f"cancel_{kind}_page")
    def _cancel(service: ServiceOf, _: Caller, id: Id) -> Response:
        cancel(service, find_work(service, id, kind))
        return refresh()

    @router.post(f"{at}/resume", name=f"resume_{kind}_page")
    def _resume(service: ServiceOf, _: Caller, id: Id) -> Response:
        resume(service, find_work(service, id, kind))
        return refresh()


_add_routes("plan")
_add_routes("run")


@router.get("/runs/{id}/report")
def report_page(request: Request, service: ServiceOf, holder: Caller, id: AnyId) -> Response:
    """Show the report of a run: its page, or its text where the page is too large to be kept."""
    find_work(service, id, "run")
    drawn = page_response(service, id)
    if drawn is not None:
        return drawn
    text = service.works.file(id, TEXT)
    if text is None:
        raise problem(404, "there is no report of it yet", "it is written when the run ends")
    return Response(text, media_type="text/plain; charset=utf-8")


async def _updates(service: Service, id: str, after: int) -> AsyncIterator[ServerSentEvent]:
    """Yield the changes of a page after a number, to the end of the work."""
    work = await run_in_threadpool(service.works.get, id)
    if work is None:
        return
    state = WorkState(work)
    await run_in_threadpool(_fold, service, id, state, after)
    async for event in service.live.follow(id, after):
        if event is not None and event.number <= state.last:
            continue  # it was shown with those before it
        await asyncio.sleep(TOGETHER_S)
        text = await run_in_threadpool(_change, service, id, state)
        if text is not None:
            yield ServerSentEvent(id=str(state.last), event="update", raw_data=text)
    whole: str | None = ""
    try:
        whole = await run_in_threadpool(_end, service, id, state)
        if whole:
            yield ServerSentEvent(id=str(state.last), event="update", raw_data=whole)
    finally:
        if whole is not None:  # else the service ends: the page comes again
            yield ServerSentEvent(event="end", raw_data="")


def _change(service: Service, id: str, state: WorkState) -> str | None:
    """Return the parts of a page that its new events change; None: its work was deleted."""
    shown = state.last
    _fold(service, id, state)
    work = service.works.get(id)
    if work is None:
        return None
    new = [line for line in state.lines if line[0] > shown]
    return fragment("work_update.html", work=work, rows=state.rows(work), new=new)


def _end(service: Service, id: str, state: WorkState) -> str | None:
    """Return the page of a work that has ended; None: it goes on."""
    work = service.works.get(id)
    if work is None:
        return ""
    if work.state not in ENDED:
        return None
    _fold(service, id, state)
    return fragment("work.html", **_values(service, work, state), oob=True)
