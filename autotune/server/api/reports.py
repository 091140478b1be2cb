"""The report of a run over HTTP: as text, or as the page that draws it.

The page came from a worker, and says what a run's folder does. So it is sandboxed: a browser gives
it an origin of its own, which has no cookie and reaches no page of the service; it runs the two
scripts of this version alone, and no host can be asked for anything.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from autotune.report.html import policy, with_plotly
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import problem
from autotune.server.api.work import Id, details, file_response
from autotune.server.service import Service

router = APIRouter(prefix="/runs", tags=["runs"])
PAGE, TEXT = "report.html", "report.txt"
Format = Annotated[
    Literal["text", "html"],
    Query(description="`text`: what `autotune report` prints; `html`: what its --html writes."),
]
_CONTENT: dict[str, Any] = {"schema": {"type": "string"}}


@router.get(
    "/{id}/report",
    name="get_run_report",
    response_class=Response,
    responses={200: {"content": {"text/plain": _CONTENT, "text/html": _CONTENT}}},
)
def _report(service: ServiceOf, _: Caller, id: Id, format: Format = "text") -> Response:
    """The report of a run that has ended."""
    details(service, id, "run")
    if format == "text":
        return file_response(service, id, TEXT)
    answer = page_response(service, id)
    if answer is None:
        raise problem(404, f"there is no {PAGE} of it", "it may still be running")
    return answer


def page_response(service: Service, id: str) -> Response | None:
    """The page of a report, confined; None: there is none."""
    content = service.works.file(id, PAGE)
    if content is None:
        return None
    headers = {
        "content-security-policy": f"{policy()}; sandbox allow-scripts; frame-ancestors 'none'",
        # With `same-origin` a browser refuses a page that is sandboxed.
        "cross-origin-opener-policy": "unsafe-none",
    }
    return HTMLResponse(with_plotly(content), headers=headers)
