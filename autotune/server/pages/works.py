"""All plans and runs: searched, and two of them compared."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import problem
from autotune.server.api.work import Text, details
from autotune.server.pages.render import (
    device_text,
    page,
    size_text,
    speed_text,
    state_text,
    value_text,
)
from autotune.server.store.values import Details, Kind, State
from autotune.server.store.works import Filter

router = APIRouter(include_in_schema=False)
PER_PAGE = 30
_Any = Annotated[str, Query(max_length=100, pattern=Text)]
_Id = Annotated[str | None, Query(pattern=r"^[0-9a-f]{16}$")]
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


@router.get("/compare")
def compare_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    a: _Id = None,
    b: _Id = None,
    work: Annotated[list[str] | None, Query(max_length=50)] = None,
) -> Response:
    """Show the differences of two works."""
    if work is not None:
        if len(work) != 2:
            raise problem(422, f"two works are compared, but {len(work)} were chosen", "tick two")
        return RedirectResponse(f"/compare?{urlencode({'a': work[0], 'b': work[1]})}", 303)
    if a is None or b is None:
        raise problem(422, "two works are compared", "tick two among all works")
    both = details(service, a), details(service, b)
    return page(
        request,
        holder,
        "compare.html",
        works=both,
        rows=list(differences(*both)),
        unanswered=[work for work in both if not (knobs_of(work) or _first_line(work))],
        job=list(_job_lines(*both)),
    )


def differences(a: Details, b: Details) -> Iterator[tuple[str, str, str]]:
    """Yield (what, its value in the first, in the second) of everything that is not the same in
    two works. The settings of one that has no answer differ in nothing."""
    for name, first, second in (
        ("model", a.model, b.model),
        ("method", a.method, b.method),
        ("device", device_text(a.device), device_text(b.device)),
        ("result", state_text(a.state, a.outcome), state_text(b.state, b.outcome)),
        ("speed", _speed(a), _speed(b)),
        ("answer", _first_line(a), _first_line(b)),
        ("peak memory", size_text(a.peak_memory_bytes), size_text(b.peak_memory_bytes)),
    ):
        if first != second:
            yield name, first or "–", second or "–"
    ours, theirs = knobs_of(a), knobs_of(b)
    for name in sorted({*ours, *theirs}) if ours and theirs else ():
        if ours.get(name) != theirs.get(name):
            yield name, value_text(ours.get(name)), value_text(theirs.get(name))


def knobs_of(work: Details) -> Mapping[str, Any]:
    """Return the knobs of a work's answer; none: it has no answer."""
    result = work.result or {}
    answer = result.get("answer") or result
    knobs = answer.get("knobs") if isinstance(answer, dict) else None
    return knobs if isinstance(knobs, dict) else {}


def _first_line(work: Details) -> str:
    """Return the answer of a plan of several machines; empty: it is of one, or there is none."""
    result = work.result or {}
    lines = result.get("lines")
    return str(lines[0]) if result.get("machines") and isinstance(lines, list) and lines else ""


def _speed(work: Details) -> str:
    text = speed_text(work.tokens_per_s)
    return text and f"{text}, {'measured' if work.kind == 'run' else 'estimated'}"


def _job_lines(a: Details, b: Details) -> Iterator[str]:
    """Yield the lines of two jobs that differ, each with `-` or `+` before it."""
    lines = difflib.unified_diff(a.job.splitlines(), b.job.splitlines(), n=0, lineterm="")
    return (line for line in list(lines)[2:] if not line.startswith("@@"))
