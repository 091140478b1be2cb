"""A real browser at the pages, and what it must not have seen when a test ends."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.absent import absent

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
TIMEOUT_MS = 240_000.0
_OF_REFUSALS = re.compile(r"the server responded with a status of 4\d\d")
"""What Chromium itself says of a refusal that was wanted."""


def chromium() -> str:
    """Where it is; a test that needs it is skipped where it is not."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        absent("there is no chromium here")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page of a new session. At its end: no errors, nothing against the policy, no other host."""
    said: list[str] = []
    asked: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _OF_REFUSALS.search(message.text):
            said.append(message.text)

    with browser.new_context(base_url=url, **options) as context:
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("console", hear)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        yield page
    assert not said, said
    assert {one for one in asked if not one.startswith((url, "data:", "blob:"))} == set()


def breaches(page: Page) -> list[str]:
    """Where a page breaks WCAG 2 A or AA, as axe-core says it."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
        ".then(result => result.violations)"
    )
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels a page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return width
