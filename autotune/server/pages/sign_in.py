"""A browser signs in with a token, and out again."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from autotune.server.access.callers import COOKIE, Caller, ServiceOf, refuse_other_sites
from autotune.server.access.tokens import SESSION_S
from autotune.server.pages.render import page, redirect
from autotune.server.service import Service

router = APIRouter(include_in_schema=False)
HOME = "/"
_Next = Annotated[str, Query(max_length=500)]


@router.get("/login")
def login_page(request: Request, service: ServiceOf, next: _Next = HOME) -> Response:
    """Show the form for a token."""
    if not service.needs_token:
        return RedirectResponse(HOME, 303)
    return page(request, None, "login.html", next=_local(next), wrong=False)


@router.post("/login")
async def login(
    request: Request,
    service: ServiceOf,
    token: Annotated[str, Form(max_length=200)] = "",
    next: Annotated[str, Form(max_length=500)] = HOME,
) -> Response:
    """Take a token for a session."""
    # There is no session yet whose secret a page could send along: the origin has to do.
    refuse_other_sites(request)
    session = await run_in_threadpool(_session, service, token.strip())
    if session is None:
        return page(request, None, "login.html", status=401, next=_local(next), wrong=True)
    response = RedirectResponse(_local(next), 303)
    response.set_cookie(
        COOKIE,
        session,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=service.settings.https,
    )
    return response


@router.post("/logout")
def logout(request: Request, service: ServiceOf, _: Caller) -> Response:
    """Forget the session."""
    service.tokens.remove(request.cookies.get(COOKIE, ""))
    response = redirect("/login")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=service.settings.https)
    return response


def _session(service: Service, token: str) -> str | None:
    holder = service.tokens.holder(token) if token else None
    if holder is None or holder.role != "user":
        return None
    return service.tokens.add(holder.name, "session", SESSION_S)


def _local(next: str) -> str:
    """Return the path that was asked for if it is ours, else the first page."""
    plain = next.isprintable() and "\\" not in next
    return next if plain and next.startswith("/") and not next.startswith("//") else HOME
