"""All plans and runs: searched, and two of them side by side."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import problem
from autotune.server.api.work import Text, details
from autotune.server.pages.render import fragment, page
from autotune.server.store.values import Details, Kind, State
from autotune.server.store.works import Filter

router = APIRouter(include_in_schema=False)
PER_PAGE = 30
_Any = Annotated[str, Query(max_length=100, pattern=Text)]
_Long = Annotated[str, Query(max_length=1000, pattern=Text)]
_Id = Annotated[str | None, Query(pattern=r"^[0-9a-f]{16}$")]
_KINDS: dict[str, Kind] = {"plan": "plan", "run": "run"}
_STATES: dict[str, State] = {
    **{"queued": "queued", "running": "running", "done": "done"},
    **{"failed": "failed", "cancelled": "cancelled"},
}


@dataclass(frozen=True)
class Row:
    """The values of a knob in both; None: one has no answer, or not this knob."""

    name: str
    values: tuple[Any, Any]

    @property
    def differs(self) -> bool:
        """True if the two values are not the same."""
        return bool(self.values[0] != self.values[1])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The knobs, jobs and figures of two works, compared.

    Attributes:
        speed, memory: the second over the first; None: one of them is not known.
        job: lines of the jobs, each with ` `, `-` or `+` before it.
        measured: whether the numbers of each were measured.
    """

    rows: tuple[Row, ...]
    speed: float | None
    memory: float | None
    job: tuple[str, ...]
    measured: tuple[bool, bool]

    @property
    def differing(self) -> list[Row]:
        """Knobs that differ."""
        return [row for row in self.rows if row.differs]

    @property
    def equal(self) -> list[Row]:
        """Knobs that are equal."""
        return [row for row in self.rows if not row.differs]


def compared(a: Details, b: Details) -> Comparison:
    """Compare two works."""
    first, second = knobs_of(a), knobs_of(b)
    names = sorted({*first, *second})
    lines = difflib.ndiff(a.job.splitlines(), b.job.splitlines())
    return Comparison(
        rows=tuple(Row(name, (first.get(name), second.get(name))) for name in names),
        speed=_ratio(a.tokens_per_s, b.tokens_per_s),
        memory=_ratio(a.peak_memory_bytes, b.peak_memory_bytes),
        job=tuple(line for line in lines if not line.startswith("?")),
        measured=(a.kind == "run", b.kind == "run"),
    )


def knobs_of(work: Details) -> Mapping[str, Any]:
    """Return the knobs of a work's answer; none: it has no answer."""
    result = work.result or {}
    answer = result.get("answer") or result
    knobs = answer.get("knobs")
    return knobs if isinstance(knobs, dict) else {}


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b else None


@router.get("/history")
def history_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    text: _Any = "",
    kind: _Any = "",
    state: _Any = "",
    method: _Any = "",
    page_number: Annotated[int, Query(alias="page", ge=1, le=100_000)] = 1,
) -> Response:
    """Show a page of the works that fit a filter."""
    asked = {"text": text, "kind": kind, "state": state, "method": method}
    wanted = Filter(
        kind=_KINDS.get(kind),
        state=_STATES.get(state),
        method=method or None,
        text=text or None,
    )
    total = service.works.count(wanted)
    query = urlencode({name: value for name, value in asked.items() if value})
    return page(
        request,
        holder,
        "history.html",
        works=service.works.search(wanted, page_number, PER_PAGE),
        total=total,
        number=page_number,
        pages=max(-(-total // PER_PAGE), 1),
        query=query,
        asked=asked,
        methods=list(METHODS),
        states=list(_STATES),
    )


@router.get("/history/known")
def known(service: ServiceOf, _: Caller, text: _Long = "", device: _Long = "") -> Response:
    """Show the last runs and plans of a model on a GPU."""
    name = text.strip().rpartition("/")[2]
    works: list[Any] = []
    if name and "\n" not in name and ":" not in name:
        words = " ".join((name, device))[:100]
        for kind in ("run", "plan"):
            wanted = Filter(kind=_KINDS[kind], state="done", text=words)
            works += service.works.search(wanted, per_page=2)
    return HTMLResponse(fragment("known.html", works=works))


@router.get("/compare")
def compare_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    a: _Id = None,
    b: _Id = None,
    work: Annotated[list[str] | None, Query(max_length=50)] = None,
) -> Response:
    """Show two works side by side."""
    if work is not None:
        if len(work) != 2:
            raise problem(422, f"two works are compared, but {len(work)} were chosen", "choose two")
        return RedirectResponse(f"/compare?{urlencode({'a': work[0], 'b': work[1]})}", 303)
    if a is None or b is None:
        raise problem(422, "two are compared", "choose two in the history")
    both = details(service, a), details(service, b)
    return page(request, holder, "compare.html", works=both, comparison=compared(*both))
