"""Errors as people see them: a page, or a part of the page that they are on."""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from autotune.server.pages.render import fragment, is_htmx, page, redirect

Handler = Callable[[Request, Any], Response | Awaitable[Response]]
_NO_PAGES = ("/api/", "/static/", "/metrics")


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
