"""Templates, and the pages and fragments that are made of them."""

import functools
import hashlib
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from autotune import __version__
from autotune.report.html_templates import HtmlTemplates
from autotune.server.access.tokens import Holder
from autotune.server.pages import words

HERE = Path(__file__).parent
STATIC = HERE / "static"
_FILTERS = {
    "size": words.size_text,
    "speed": words.speed_text,
    "seconds": words.seconds_text,
    "share": words.share_text,
    "count": words.count_text,
    "when": words.when_text,
    "iso": words.iso_time,
    "device": words.device_text,
    "value": words.value_text,
    "batch": words.batch_text,
    "said": words.said_text,
}


@functools.cache
def _templates() -> HtmlTemplates:
    names = {
        "version": __version__,
        "stamp": _stamp(),
        "state_text": words.state_text,
        "state_tone": words.state_tone,
        "knob_words": words.knob_words,
    }
    return HtmlTemplates(HERE / "templates", _FILTERS, names)


def page(
    request: Request, holder: Holder | None, name: str, *, status: int = 200, **values: Any
) -> Response:
    """Return a page."""
    text = fragment(name, holder=holder, path=request.scope["path"], **values)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


def fragment(name: str, **values: Any) -> str:
    """Return a part of a page."""
    return _templates().html(name, **values)


def is_htmx(request: Request) -> bool:
    """True if htmx asks: for a part of a page."""
    return request.headers.get("hx-request") == "true"


def redirect(path: str, status: int = 204) -> Response:
    """Let htmx go to a page."""
    return Response(status_code=status, headers={"HX-Redirect": path})


def refresh() -> Response:
    """Let htmx load the page again."""
    return Response(status_code=204, headers={"HX-Refresh": "true"})


def _stamp() -> str:
    """Return changes with the static files, so that browsers may keep them."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.rglob("*")):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:10]
