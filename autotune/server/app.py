"""The service as a web app: the API, the pages, their errors, and the gate that all requests
pass."""

import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from autotune import __version__
from autotune.server.access.requests import API, Gate
from autotune.server.api import facts, work, workers
from autotune.server.api.problems import RESPONSES, handle_problems
from autotune.server.metrics import Metrics
from autotune.server.pages import form, sign_in, works
from autotune.server.pages import work as work_pages
from autotune.server.pages.render import STATIC, fragment, is_htmx, page, redirect
from autotune.server.service import Service

Handler = Callable[[Request, Any], Response | Awaitable[Response]]
_NO_PAGES = ("/api/", "/static/", "/metrics")
DESCRIPTION = "Plans and runs of autotune. Sizes are bytes, times seconds (since 1970, UTC)."


def add_pages(app: FastAPI) -> None:
    """Let an app answer browsers. Its handlers of errors are there already."""
    for part in (form, work_pages, works, sign_in):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    show_problems(app)


def show_problems(app: FastAPI) -> None:
    """Answer errors of pages with pages; what a program asks for stays as it is."""
    for kind, handler in list(app.exception_handlers.items()):
        app.exception_handlers[kind] = _as_page(handler)


def _as_page(handler: Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        given = handler(request, error)
        response = await given if inspect.isawaitable(given) else given
        assert isinstance(response, Response)
        if request.scope["path"].startswith(_NO_PAGES):
            return response
        return _page_of(request, response)

    return answer


def _page_of(request: Request, response: Response) -> Response:
    details = json.loads(bytes(response.body))
    if response.status_code == 401:
        return _to_sign_in(request)
    if not is_htmx(request):
        return page(
            request, None, "problem_page.html", status=response.status_code, details=details
        )
    text = fragment("problems.html", details=details)
    headers = {"HX-Retarget": "#problems", "HX-Reswap": "innerHTML"}
    return HTMLResponse(text, response.status_code, headers=headers)


def _to_sign_in(request: Request) -> Response:
    if is_htmx(request):
        return redirect("/login", 401)
    wanted = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)


def create_app(service: Service) -> ASGIApp:
    """Return the app of a service, behind its gate."""
    app = create_routes(service)
    return Gate(app, service, app.state.metrics)


def create_routes(service: Service) -> FastAPI:
    """Return the API and the pages of a service."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.live.start()
        yield

    app = FastAPI(
        title="autotune",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    metrics = Metrics(service.works, service.queue, service.live)
    service.events.on_new = metrics.count_probes
    app.state.service, app.state.metrics = service, metrics
    handle_problems(app)
    # Not within a router of their own: each level matches all routes twice.
    for router in (work.plans, work.runs, facts.router, workers.router):
        app.include_router(router, prefix=API, responses=RESPONSES)
    add_pages(app)
    app.include_router(facts.operation)
    return app
