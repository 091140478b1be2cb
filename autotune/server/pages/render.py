"""Templates, the pages and fragments made of them, and values as people read them on a page."""

import datetime
import functools
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup, escape

from autotune import __version__
from autotune.report.html import HtmlTemplates
from autotune.server.access.tokens import Holder
from autotune.units import format_bytes, format_speed

_OUTCOMES = {
    "fits": "fits",
    "nothing_fits": "nothing fits",
    "nothing_measured": "nothing measured",
    "recommended": "found",
}
SHOWN = ("launch.sh", "_config.yaml", "accelerate.yaml", "deepspeed.json", "README.md")
_MOST, _FILES = 64_000, 100
_LAUNCH = re.compile(r"`bash\s+(launch\w*\.sh[^`]*)`")
HERE = Path(__file__).parent
STATIC = HERE / "static"


def size_text(count: float | None) -> str:
    """Format bytes: `1.25 GiB`."""
    return "" if count is None else format_bytes(count)


def speed_text(tokens_per_s: float | None) -> str:
    """Format a speed: `45k tokens/s`."""
    return "" if tokens_per_s is None else format_speed(tokens_per_s)


def when_text(utc: float | None) -> str:
    """Format a time: `2026-11-23 14:05 UTC`; pages show it in the reader's own time."""
    if utc is None:
        return ""
    time = datetime.datetime.fromtimestamp(utc, datetime.UTC)
    return time.strftime("%Y-%m-%d %H:%M UTC")


def iso_time(utc: float) -> str:
    """Format a time for `<time datetime>`."""
    return datetime.datetime.fromtimestamp(utc, datetime.UTC).isoformat(timespec="seconds")


def device_text(device: str) -> str:
    """Format a device: `24 GiB` for `memory=24GiB`; a name stays as it is."""
    memory = re.fullmatch(r"memory=([0-9.]+)GiB", device)
    return f"{memory[1]} GiB" if memory else device


def state_text(state: str, outcome: str) -> str:
    """Return the state of a work, in a word or two."""
    if state == "done" and outcome:
        return _OUTCOMES.get(outcome, outcome.replace("_", " "))
    return "waiting" if state == "queued" else state


def state_tone(state: str, outcome: str) -> str:
    """Return the tone of that state: `good`, `bad`, `busy` or `calm`."""
    if state == "failed" or outcome.startswith("nothing"):
        return "bad"
    if state == "done":
        return "good"
    return "busy" if state == "running" else "calm"


def said_text(text: str) -> Markup:
    """Return a line of ours as HTML: backticks become code, `+-` one sign."""
    parts = re.split(r"`([^`]*)`", text.replace("+-", "\N{PLUS-MINUS SIGN}"))
    shown = (
        Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts)
    )
    return Markup("").join(shown)


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    name: str
    text: str


def bundle_files(archive: bytes | None) -> list[BundleFile]:
    """Return the files of a bundle that a page shows."""
    if archive is None:
        return []
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        names = [name for end in SHOWN for name in files.namelist() if name.endswith(end)][:_FILES]
        return [
            BundleFile(name.removeprefix("bundle/"), _text(files.read(name)))
            for name in names
            if files.getinfo(name).file_size <= _MOST
        ]


def launch_command(id: str, files: list[BundleFile]) -> str:
    """Return the command that unpacks and launches a downloaded bundle, as its README has it: where
    the job named no data, it has a placeholder for them."""
    readme = next((file.text for file in files if file.name == "README.md"), "")
    match = _LAUNCH.search(readme)
    launch = " ".join(match[1].split()) if match else "launch.sh"
    return f"unzip {id}-bundle.zip && bash bundle/{launch}"


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


@functools.cache
def _templates() -> HtmlTemplates:
    names = {
        "version": __version__,
        "stamp": _stamp(),
        "state_text": state_text,
        "state_tone": state_tone,
    }
    filters = {
        "size": size_text,
        "speed": speed_text,
        "when": when_text,
        "iso": iso_time,
        "device": device_text,
        "said": said_text,
    }
    return HtmlTemplates(HERE / "templates", filters, names)


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
    """True if htmx asks, for a part of a page."""
    return request.headers.get("hx-request") == "true"


def redirect(path: str, status: int = 204) -> Response:
    """Let htmx go to a page."""
    return Response(status_code=status, headers={"HX-Redirect": path})


def refresh() -> Response:
    """Let htmx load the page again."""
    return Response(status_code=204, headers={"HX-Refresh": "true"})


def _stamp() -> str:
    """Return a digest of the static files, so that browsers may keep them until they change."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.rglob("*")):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:10]
