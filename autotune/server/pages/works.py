"""All plans and runs, searched."""

from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.work import Text
from autotune.server.pages.render import page
from autotune.server.store.values import Kind, State
from autotune.server.store.works import Filter

router = APIRouter(include_in_schema=False)
PER_PAGE = 30
_Any = Annotated[str, Query(max_length=100, pattern=Text)]
_KINDS: dict[str, Kind] = {"plan": "plan", "run": "run"}
_STATES: dict[str, State] = {name: name for name in get_args(State)}


@router.get("/works")
def works_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    text: _Any = "",
    kind: _Any = "",
    state: _Any = "",
    method: _Any = "",
    page_number: Annotated[int, Query(alias="page", ge=1, le=100_000)] = 1,
) -> Response:
    """Show a page of the works that fit a filter, and the workers that are here."""
    asked = {"text": text, "kind": kind, "state": state, "method": method}
    wanted = Filter(
        kind=_KINDS.get(kind), state=_STATES.get(state), method=method or None, text=text or None
    )
    total = service.works.count(wanted)
    return page(
        request,
        holder,
        "works.html",
        works=service.works.search(wanted, page_number, PER_PAGE),
        workers=service.queue.workers(),
        total=total,
        number=page_number,
        pages=max(-(-total // PER_PAGE), 1),
        query=urlencode({name: value for name, value in asked.items() if value}),
        asked=asked,
        choices={"kind": list(_KINDS), "state": list(_STATES), "method": list(METHODS)},
    )
