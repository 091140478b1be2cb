"""Who calls: known by a token in `Authorization` or by the cookie of a browser that has signed in.
Where only this machine reaches the service and there are no tokens, anybody on it may.

A browser sends cookies along with whatever page asks it to, so what it changes must come from a
page of this service: same origin, and with a header that only our pages know.
"""

import hmac
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from autotune.server.access.tokens import Holder
from autotune.server.api.problems import problem
from autotune.server.service import Service

COOKIE = "autotune_session"
CSRF_HEADER = "x-csrf-token"
"""Pages send it with whatever they change; a program sends JSON, which a form cannot."""
_SAFE = {"GET", "HEAD", "OPTIONS"}
_JSON = ("application/json", "application/yaml")


async def _service(request: Request) -> Service:
    """Return the service. As a dependency that is not `async` it would take a thread of its
    own."""
    return service_of(request)


def service_of(request: Request) -> Service:
    """Return the service that a request is for."""
    service: Service = request.app.state.service
    return service


def caller(request: Request) -> Holder:
    """Return who calls, as a user.

    Raises:
        Refusal: a token is needed (401), or this came from another site's page (403).
    """
    service = service_of(request)
    token = bearer(request)
    if token is not None:
        return _holder(service, token, ("user",))
    cookie = request.cookies.get(COOKIE)
    holder = service.tokens.holder(cookie) if cookie else None
    if holder is None or holder.role != "session":
        if service.needs_token:
            hint = "send `Authorization: Bearer TOKEN`, or sign in in the browser"
            raise problem(401, "a token is needed", hint)
        holder = Holder(name="local", role="user", csrf=service.local_csrf)
    if request.method not in _SAFE:
        refuse_other_sites(request)
        _refuse_forms(request, holder)
    return holder


def worker(request: Request) -> Holder:
    """Return the worker that calls.

    Raises:
        Refusal: its token is missing or is not a worker's (401).
    """
    return _holder(service_of(request), bearer(request) or "", ("worker",))


def bearer(request: Request) -> str | None:
    """Return the token in `Authorization`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _holder(service: Service, token: str, roles: tuple[str, ...]) -> Holder:
    holder = service.tokens.holder(token)
    if holder is None or holder.role not in roles:
        raise problem(401, "this token is not known here", "ask the operator for another one")
    return holder


def refuse_other_sites(request: Request) -> None:
    """Refuse a request from a page of another site.

    Raises:
        Refusal: it is one (403).
    """
    origin = request.headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours or request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise problem(403, "this comes from a page of another site")


def _refuse_forms(request: Request, holder: Holder) -> None:
    """Refuse changes that come neither from our own pages nor from a program."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    is_api = request.scope["path"].startswith("/api/")
    shown = request.headers.get(CSRF_HEADER, "")
    if is_api and kind in _JSON or hmac.compare_digest(shown.encode(), holder.csrf.encode()):
        return
    hint = "load the page again"
    if is_api:
        hint = "a program sends `Content-Type: application/json`, even without a body"
    raise problem(403, "this does not come from a page of this service", hint)


Caller = Annotated[Holder, Depends(caller)]
Worker = Annotated[Holder, Depends(worker)]
ServiceOf = Annotated[Service, Depends(_service)]
