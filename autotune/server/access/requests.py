"""What every request passes: checks of its host and size; and the headers, the id and the line in
the log that it gets. How often and how slowly it comes is for a proxy to limit."""

import ipaddress
import json
import logging
import re
import secrets
import time
from urllib.parse import urlsplit

from fastapi import HTTPException  # which FastAPI hands on where it reads a body
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.server.access.callers import COOKIE, bearer
from autotune.server.api.problems import problem_response
from autotune.server.metrics import Metrics
from autotune.server.service import Service
from autotune.server.store.values import MOST_UPLOAD

SPARE = 200
"""Connections besides those that follow events."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::\d{1,5})?", re.ASCII)
API, WORKERS = "/api/v1", "/api/v1/worker/"
UNKNOWN = 16 * 2**10
"""Bytes of a request without a known token, where one is needed: enough to sign in."""
_OFTEN = ("/worker/lease", "/worker/beat", "/health", "/metrics")
"""Requests that come every second or so: they are logged at the debug level."""
log = logging.getLogger("autotune.server")


class Gate:
    """Wraps the app: refuses what is not for it, and adds headers to all that it answers."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics) -> None:
        self._app, self._service, self._metrics = app, service, metrics
        self._settings = service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        bodiless = scope["method"] == "HEAD" and _is_page(scope["path"])
        if bodiless:
            scope = {**scope, "method": "GET"}
        request = Request(scope)
        request.state.id = secrets.token_hex(6)
        began, status = time.monotonic(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(request, message)
            elif bodiless:
                message = {**message, "body": b""}
            await send(message)

        try:
            most = await self._most(request)
            refusal = self._refusal(request, most)
            if refusal is not None:
                await refusal(scope, receive, answer)
            else:
                await self._app(scope, _measured(receive, most), answer)
        except Exception:  # the answer to it has been sent
            log.exception(json.dumps({"event": "mistake", "request": request.state.id}))
        finally:
            self._note(request, status or 500, time.monotonic() - began)

    def _refusal(self, request: Request, most: int) -> Response | None:
        host = request.headers.get("host", "").lower()
        match = _HOST.fullmatch(host)
        name = match[1].strip("[]") if match else ""
        if not name or (name not in self._settings.hosts and not self._is_open(name)):
            what = f"this service is not called `{host[:100]}`; the operator can add it to `names`"
            return problem_response(request, 421, what)
        if not _is_url(request.headers.get("origin", "")):
            return problem_response(request, 403, "this comes from a page of another site")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 16 and int(length) <= most):
            return problem_response(request, 413, f"more than {most} bytes are not taken")
        return None

    def _is_open(self, name: str) -> bool:
        """True if the service listens at all addresses and is called by one of them: no foreign
        name can be made to point here then."""
        if self._settings.host not in ("0.0.0.0", "::"):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _most(self, request: Request) -> int:
        """Return how many bytes of a request are taken. Bodies are read before their sender is
        checked, so large ones need a known token."""
        length = request.headers.get("content-length", "")
        small = length.isascii() and length.isdigit() and len(length) < 6 and int(length) <= UNKNOWN
        chunked = "transfer-encoding" in request.headers
        if small or (not length and not chunked):
            return UNKNOWN
        role = await run_in_threadpool(self._role, request)
        if role == "worker" and scope_path(request).startswith(WORKERS):
            return MOST_UPLOAD
        return self._settings.limits.body if role else UNKNOWN

    def _role(self, request: Request) -> str | None:
        token = bearer(request) or request.cookies.get(COOKIE)
        holder = self._service.tokens.holder(token) if token else None
        if holder is not None:
            return holder.role
        return None if self._service.needs_token else "user"

    def _note(self, request: Request, status: int, seconds: float) -> None:
        """Count a request and log it, without its query, which may hold a secret."""
        route = route_of(request)
        follows = route.endswith("/events") and request.method == "GET"
        self._metrics.answered(request.method, route, status, None if follows else seconds)
        line = {
            "event": "request",
            "request": request.state.id,
            "method": request.method[:16],
            "path": scope_path(request)[:200],
            "route": route,
            "status": status,
            "seconds": round(seconds, 4),
            "client": request.client.host if request.client else None,
        }
        often = status < 400 and route.endswith(_OFTEN)
        log.log(logging.DEBUG if often else logging.INFO, json.dumps(line))


def _is_page(path: str) -> bool:
    """True if a path is that of a page, which may be asked for without its body."""
    return not path.startswith("/api/") and not path.endswith("/events")


def _is_url(origin: str) -> bool:
    try:
        urlsplit(origin)
    except ValueError:
        return False
    return True


def scope_path(request: Request) -> str:
    """Return the path of a request; its URL is not to be trusted before its host is checked."""
    path: str = request.scope["path"]
    return path


def route_of(request: Request) -> str:
    """Return the template of the route that answered, such as `/api/v1/plans/{id}`; `other`: none
    did."""
    path = scope_path(request)
    if path.startswith("/static/"):
        return "/static"  # else each name that is asked for would be a route of its own
    template = getattr(request.scope.get("route"), "path", None)
    if template is None:
        known = request.scope.get("endpoint") is not None and not request.scope.get("path_params")
        return path if known else "other"
    prefix = API if path.startswith(f"{API}/") and not template.startswith(API) else ""
    return f"{prefix}{template}"


def _add_headers(request: Request, message: Message) -> None:
    given = {name for name, _ in message["headers"]}
    ours = [*_HEADERS, (b"x-request-id", request.state.id.encode())]
    if not scope_path(request).startswith("/static/"):
        ours.append((b"cache-control", b"no-store"))
    if message["status"] in (413, 421):  # the rest of the body is not waited for
        ours.append((b"connection", b"close"))
    message["headers"] = [*message["headers"], *(pair for pair in ours if pair[0] not in given)]


def _measured(receive: Receive, most: int) -> Receive:
    """Count the bytes that come, and end a request whose body is too long: its stated length may be
    missing, or false."""
    taken = 0

    async def measured() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, f"more than {most} bytes are not taken")
        return message

    return measured
