"""What every request goes through: a host name of ours, a size, a rate, headers, an id, a log."""

import ipaddress
import json
import logging
import secrets
import time
from collections import OrderedDict

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.server.api.problems import problem_response
from autotune.server.settings import Settings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
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
_READS = {"GET", "HEAD", "OPTIONS"}
_ADDRESSES = 4096
WORKERS = "/api/v1/worker/"
UPLOAD = 64 * 2**20
"""Bytes of a worker's request: a bundle and a report."""
log = logging.getLogger("autotune.server")


class TooLarge(Exception):
    """A body is longer than is taken."""


class Gate:
    """Wraps the app: refuses what is not for it, and adds headers to all that it answers."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        request.state.id = secrets.token_hex(6)
        began, status = time.monotonic(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = request.state.id
                if request.url.path.startswith(("/api/", "/plans", "/runs", "/history")):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(request)
        try:
            if refusal is not None:
                await refusal(scope, receive, answer)
            else:
                await self._app(scope, self._measured(request, receive), answer)
        except TooLarge:
            await self._too_large(request)(scope, receive, answer)
        finally:
            _log(request, status, time.monotonic() - began)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.strip("[]") not in self._settings.hosts and not self._is_open(name):
            detail = (
                f"this service is not called `{name[:100]}`; the operator can add it to `names`"
            )
            return problem_response(request, 421, detail)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._most(request):
            return self._too_large(request)
        is_worker = request.url.path.startswith(WORKERS)
        if request.method not in _READS and not is_worker and not self._has_rate(request):
            return problem_response(request, 429, "too many requests; wait a minute")
        return None

    def _is_open(self, name: str) -> bool:
        """Listening at all addresses, it may be called by any: no name can be made to point here by
        somebody else."""
        if self._settings.host not in ("0.0.0.0", "::"):
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _most(self, request: Request) -> int:
        return UPLOAD if request.url.path.startswith(WORKERS) else self._settings.limits.body

    def _too_large(self, request: Request) -> Response:
        return problem_response(
            request, 413, f"more than {self._most(request)} bytes are not taken"
        )

    def _measured(self, request: Request, receive: Receive) -> Receive:
        """Counts what comes: a length may be missing, or a lie."""
        most, taken = self._most(request), 0

        async def measured() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise TooLarge
            return message

        return measured

    def _has_rate(self, request: Request) -> bool:
        """Whether an address may change something now: so many a minute, and as many at once."""
        most = float(self._settings.limits.requests_per_minute)
        address = request.client.host if request.client else ""
        now = time.monotonic()
        left, then = self._buckets.pop(address, (most, now))
        left = min(left + (now - then) * most / 60, most) - 1
        self._buckets[address] = max(left, -1.0), now
        while len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return left >= 0


def _log(request: Request, status: int, seconds: float) -> None:
    line = {
        "request": request.state.id,
        "method": request.method,
        "path": request.url.path,
        "status": status,
        "seconds": round(seconds, 4),
        "client": request.client.host if request.client else None,
    }
    log.info(json.dumps(line))
