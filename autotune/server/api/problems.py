"""Errors as problem details (RFC 9457): all problems of a job at once, with their fields."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from autotune.errors import AutotuneError, Problem, UserError
from autotune.server.store.values import Value

MEDIA_TYPE = "application/problem+json"
_MOST = 100
"""Problems of one answer."""
_TITLES = {
    400: "The request is not right",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "No such method here",
    409: "Not possible now",
    413: "Too large",
    415: "Another type of content is needed",
    421: "This is not the name of this service",
    422: "The request is not right",
    429: "Too many",
    500: "A mistake of the service",
    502: "This cannot be shown",
    503: "Not available now",
}


_OF_JOBS = ("/plans", "/runs", "/")
"""Paths that take jobs, of the API and of pages."""
_JOB_TITLE = "The job cannot be taken"


class ProblemItem(Value):
    """One thing that is wrong."""

    where: str
    """The field, or the line of the job."""
    what: str
    hint: str | None = None
    """The next step."""


class ProblemDetails(Value):
    """Problem details: everything that is wrong with a request."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ProblemItem] = []
    request: str | None = Field(default=None)
    """The id of the request in the service's log."""


RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"model": ProblemDetails, "description": "What is wrong, as problem details"}
}


class Refusal(Exception):
    """A request that is answered with one problem."""

    def __init__(self, status: int, item: ProblemItem) -> None:
        self.status, self.item = status, item
        super().__init__(item.what)


def problem(status: int, what: str, hint: str | None = None, where: str = "") -> Refusal:
    """Make a refusal, to be raised."""
    return Refusal(status, ProblemItem(where=where, what=what, hint=hint))


def problem_response(
    request: Request,
    status: int,
    detail: str,
    errors: list[ProblemItem] | None = None,
    title: str | None = None,
) -> JSONResponse:
    """Answer with problem details."""
    body = ProblemDetails(
        title=title or _TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        errors=errors or [],
        request=getattr(request.state, "id", None),
    )
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body.model_dump(), status, media_type=MEDIA_TYPE, headers=headers)


def items(problems: tuple[Problem, ...]) -> list[ProblemItem]:
    """Convert our own problems to those of the API."""
    return [ProblemItem(where=p.where, what=p.what, hint=p.hint) for p in problems]


def declare_problems(app: FastAPI) -> None:
    """Declare the media type of problem details in the schema; FastAPI knows one type for a
    route."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            for operations in schema["paths"].values():
                for operation in operations.values():
                    content = operation["responses"]["default"]["content"]
                    model = next(iter(content.values()))
                    operation["responses"]["default"]["content"] = {MEDIA_TYPE: model}
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def handle_problems(app: FastAPI) -> None:
    """Answer every error of an app with problem details."""
    declare_problems(app)

    @app.exception_handler(Refusal)
    def _refusal(request: Request, error: Refusal) -> Response:
        return problem_response(request, error.status, error.item.what, [error.item])

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        response = problem_response(request, error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    def _validation(request: Request, error: RequestValidationError) -> Response:
        errors = [
            ProblemItem(where=".".join(map(str, one["loc"])), what=str(one["msg"]))
            for one in error.errors()[:_MOST]
        ]
        return problem_response(request, 422, "the request is not as it has to be", errors)

    @app.exception_handler(AutotuneError)
    def _ours(request: Request, error: AutotuneError) -> Response:
        status = 422 if isinstance(error, UserError) else 503
        count = len(error.problems)
        detail = error.problems[0].what if count == 1 else f"{count} problems"
        is_job = status == 422 and request.scope["path"].endswith(_OF_JOBS)
        title = _JOB_TITLE if is_job else None
        return problem_response(request, status, detail, items(error.problems[:_MOST]), title)

    @app.exception_handler(Exception)
    def _bug(request: Request, _: Exception) -> Response:
        if request.method == "GET" and "id" in request.path_params:
            detail = "this is a mistake of the service, or of a worker that sent what is shown here"
            return problem_response(request, 502, f"{detail}; the service's log says more")
        detail = "this is a mistake of the service; its log says more under the id of the request"
        return problem_response(request, 500, detail)
