"""The service as a web app: the API, the pages, and what all requests go through."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp

from autotune import __version__
from autotune.server.access.requests import API, Gate
from autotune.server.api import facts, reports, work, workers
from autotune.server.api.problems import RESPONSES, handle_problems
from autotune.server.metrics import Metrics
from autotune.server.pages.routes import add_pages
from autotune.server.service import Service

DESCRIPTION = "Plans and runs of autotune. Sizes are bytes, times seconds (since 1970, UTC)."


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
    service.events.heard = metrics.heard
    app.state.service, app.state.metrics = service, metrics
    handle_problems(app)
    # Not within a router of their own: each level matches all routes twice.
    for router in (work.plans, work.runs, reports.router, facts.router, workers.router):
        app.include_router(router, prefix=API, responses=RESPONSES)
    add_pages(app)
    app.include_router(facts.operation)
    return app
