"""Plans and runs over HTTP: asked for, looked at, followed, cancelled, taken up again, deleted.

The page of a report came from a worker. So it is sandboxed: a browser gives it an origin of its
own, which has no cookie and reaches no page of the service; it runs the two scripts of this version
alone, and no host can be asked for anything.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from autotune.errors import Problem
from autotune.report.html import policy
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import problem
from autotune.server.live import Live
from autotune.server.service import Service
from autotune.server.store.values import ENDED, Details, Kind, State, Value, Work
from autotune.server.store.works import PER_PAGE, Filter, Full, Room
from autotune.server.submission import Submission, accepted

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="The id of a work.")]
After = Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,9}$")]
Text = r"^[^\x00]*$"
"""Text that PostgreSQL can store."""
PAGE, TEXT = "report.html", "report.txt"
Format = Annotated[
    Literal["text", "html"],
    Query(description="`text`: what `autotune report` prints; `html`: what its --html writes."),
]
_CONTENT: dict[str, Any] = {"schema": {"type": "string"}}


class Page(Value):
    """A page of works, the newest first."""

    items: list[Work]
    page: int
    pages: int
    total: int


def submit(
    service: Service,
    kind: Kind,
    submission: Submission,
    submitter: str,
    known: Sequence[Problem] = (),
) -> Work:
    """Put a job into the queue.

    Args:
        known: problems that are known already.

    Raises:
        UserError: all problems of it.
        Refusal: the queue is full.
    """
    known = list(known)
    if submission.parent is not None and service.works.state(submission.parent) is None:
        hint = "leave it out, or give the id of a plan or a run"
        what = f"no work has the id `{submission.parent}`"
        known.append(Problem(where="parent", what=what, hint=hint))
    room = _room(service)
    with _refused_when_full():
        service.works.check_room(room, submitter)  # before it is judged, which takes long
        new = accepted(kind, submission, service.settings.allowed, submitter, known)
        return service.works.add(new, room)


def _room(service: Service) -> Room:
    limits = service.settings.limits
    return Room(all=limits.queued, each=limits.queued_each)


@contextlib.contextmanager
def _refused_when_full() -> Iterator[None]:
    try:
        yield
    except Full as full:
        raise problem(429, str(full), "wait for some to end, or cancel them") from None


def details(service: Service, id: str, kind: Kind | None = None) -> Details:
    """Return a work.

    Raises:
        Refusal: there is none.
    """
    work = service.works.get(id)
    if work is None or kind not in (None, work.kind):
        raise _not_there(id, kind)
    return work


def _not_there(id: str, kind: Kind | None) -> Exception:
    return problem(404, f"there is no {kind or 'work'} `{id}`")


async def stream(live: Live, id: str, after: int) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a work as server-sent events, to its end."""
    async for event in live.follow(id, after):
        if event is None:
            yield ServerSentEvent(comment="still here")
        else:
            yield ServerSentEvent(id=str(event.number), event=event.kind, raw_data=event.json_text)
    if not live.closing:  # then it is the service that ends
        yield ServerSentEvent(event="end", data={})


def router_of(kind: Kind) -> APIRouter:
    """Make the routes that plans and runs have in common."""
    router = APIRouter(prefix=f"/{kind}s", tags=[f"{kind}s"])

    @router.post("", status_code=202, name=f"submit_{kind}")
    def _submit(
        service: ServiceOf, caller: Caller, submission: Submission, response: Response
    ) -> Work:
        """Put a job into the queue."""
        work = submit(service, kind, submission, caller.name)
        response.headers["Location"] = f"/api/v1/{kind}s/{work.id}"
        return work

    @router.get("", name=f"list_{kind}s")
    def _list(
        service: ServiceOf,
        _: Caller,
        state: State | None = None,
        method: Annotated[str | None, Query(max_length=16, pattern=Text)] = None,
        text: Annotated[str | None, Query(max_length=100, pattern=Text)] = None,
        page: Annotated[int, Query(ge=1, le=100_000)] = 1,
        per_page: Annotated[int, Query(ge=1, le=200)] = PER_PAGE,
    ) -> Page:
        """Return a page of those that fit a filter. `text` is a part of a model's or a device's
        name."""
        wanted = Filter(kind=kind, state=state, method=method, text=text)
        total = service.works.count(wanted)
        items = service.works.search(wanted, page, per_page)
        return Page(items=items, page=page, pages=max(-(-total // per_page), 1), total=total)

    @router.get("/{id}", name=f"get_{kind}")
    def _get(service: ServiceOf, _: Caller, id: Id) -> Details:
        """Return one of them, with its result."""
        return details(service, id, kind)

    @router.get(
        "/{id}/events",
        response_class=EventSourceResponse,
        name=f"follow_{kind}",
        dependencies=[Depends(room_for(kind))],
    )
    async def _follow(
        service: ServiceOf,
        _: Caller,
        id: Id,
        last_event_id: After = None,
        after: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> AsyncIterator[ServerSentEvent]:
        """Stream its events as they come (server-sent events), up to an event `end`.
        A reader that was cut off goes on after `Last-Event-ID`."""
        async for event in stream(service.live, id, int(last_event_id or after)):
            yield event

    _add_others(router, kind)
    return router


def room_for(kind: Kind) -> Callable[..., None]:
    """Make a dependency that requires a work of a kind, and room for one more reader of it."""

    def room(service: ServiceOf, _: Caller, id: Id) -> None:
        if service.works.kind(id) != kind:
            raise _not_there(id, kind)
        if service.live.is_full:
            raise problem(503, "too many clients follow events already", "ask again a minute later")

    return room


def _add_others(router: APIRouter, kind: Kind) -> None:
    @router.get("/{id}/bundle.zip", name=f"get_{kind}_bundle", response_class=Response)
    def _bundle(service: ServiceOf, _: Caller, id: Id) -> Response:
        """Return the files of its answer; they say whether a launch has verified them."""
        details(service, id, kind)
        return file_response(service, id, "bundle.zip")

    @router.post("/{id}/cancel", name=f"cancel_{kind}")
    def _cancel(service: ServiceOf, _: Caller, id: Id) -> Details:
        """Cancel it: at once where it waits, else as Ctrl-C does."""
        return cancel(service, details(service, id, kind))

    @router.delete("/{id}", status_code=204, name=f"delete_{kind}")
    def _delete(service: ServiceOf, _: Caller, id: Id) -> None:
        """Delete one that has ended, and its folder."""
        details(service, id, kind)
        if not service.works.delete([id]):
            raise problem(409, "it is still waiting or running", "cancel it first")


def cancel(service: Service, work: Details) -> Details:
    """End a work.

    Raises:
        Refusal: it has ended.
    """
    if not service.works.cancel(work.id):
        raise problem(409, f"it has ended already: {work.state}")
    service.live.changed(work.id)
    return details(service, work.id)


def resume(service: Service, work: Details) -> Details:
    """Put a work that was cancelled, failed or measured nothing into the queue again.

    Raises:
        Refusal: it was none of these, or the queue is full.
    """
    with _refused_when_full():
        resumed = service.works.resume(work.id, _room(service))
    if not resumed:
        what = "only a work that was cancelled, failed or measured nothing can be resumed"
        raise problem(409, f"{what}: {work.state}")
    service.live.changed(work.id)
    return details(service, work.id)


def file_response(service: Service, id: str, name: str) -> Response:
    """Answer with a file of a work.

    Raises:
        Refusal: there is none.
    """
    content = service.works.file(id, name)
    if content is None:
        ended = service.works.state(id) in ENDED
        hint = None if ended else "it is still waiting or running"
        raise problem(404, f"it has no {name}", hint)
    kind = "application/zip" if name.endswith(".zip") else "text/plain; charset=utf-8"
    headers = {"Content-Disposition": f'attachment; filename="{id}-{name}"'}
    return Response(content, media_type=kind, headers=headers)


plans = router_of("plan")
runs = router_of("run")


@runs.post("/{id}/resume", name="resume_run")
def _resume(service: ServiceOf, _: Caller, id: Id) -> Details:
    """Go on with a run that was cancelled, has failed or measured nothing, where it was."""
    return resume(service, details(service, id, "run"))


@runs.get(
    "/{id}/report",
    name="get_run_report",
    response_class=Response,
    responses={200: {"content": {"text/plain": _CONTENT, "text/html": _CONTENT}}},
)
def _report(service: ServiceOf, _: Caller, id: Id, format: Format = "text") -> Response:
    """Return the report of a run that has ended."""
    details(service, id, "run")
    if format == "text":
        return file_response(service, id, TEXT)
    answer = page_response(service, id)
    if answer is None:
        raise problem(404, f"there is no {PAGE} of it", "it may still be running")
    return answer


def page_response(service: Service, id: str) -> Response | None:
    """Answer with the page of a report, sandboxed; None: there is none."""
    content = service.works.file(id, PAGE)
    if content is None:
        return None
    headers = {
        "content-security-policy": f"{policy()}; sandbox allow-scripts; frame-ancestors 'self'",
        # With `same-origin` a browser refuses a page that is sandboxed.
        "cross-origin-opener-policy": "unsafe-none",
    }
    return HTMLResponse(content, headers=headers)
