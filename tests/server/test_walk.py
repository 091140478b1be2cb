"""A day of a team at the service, in a real browser on a machine whose cores are taken."""

import contextlib
import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.browser import opened
from tests.server.conftest import ROOT, served
from tests.server.test_pages import AXOLOTL, CANCEL, PLAN_IT, RUN_IT

LONG_MS = 1_200_000.0
EXAMPLE = ROOT / "examples" / "quickstart"
BUSY = "while True: pass"


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Let so many processes compute without end."""
    hogs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def ask(page: Page, text: str, device: str = "", button: str = PLAN_IT) -> str:
    """Fill in the form, and return the path of the work."""
    page.goto("/")
    page.fill("#text", text)
    page.fill("#device", device)
    page.click(button)
    page.wait_for_url(re.compile("/(plans|runs)/[0-9a-f]{16}"))
    return page.url[page.url.index("/", 8) :]


def answered(page: Page, path: str) -> None:
    """Wait for the end of a work."""
    page.goto(path)
    page.wait_for_selector(f"{CANCEL}, #files, #answer, #report")
    page.wait_for_selector(CANCEL, state="detached", timeout=LONG_MS)


@pytest.mark.nightly("service")
def test_a_team_gets_its_answers_on_a_busy_machine(
    browser: Browser, tmp_path: Path, plan_cache: Path
) -> None:
    if not (EXAMPLE / "build").is_dir():
        subprocess.run([sys.executable, "scripts/make_example.py", EXAMPLE / "build"], cwd=ROOT,
                       check=True)  # fmt: skip
    settings = {"allowed": {"folders": [str(EXAMPLE)]}}
    wide = {"viewport": {"width": 1400, "height": 900}, "accept_downloads": True}
    with (
        served(tmp_path, plan_cache, settings) as service,
        opened(browser, service.url, **wide) as page,
    ):
        with busy_cores(2):
            began = time.monotonic()
            plan = ask(page, "qwen2.5-7b", "24 GB")
            expect(page.locator("#now, #answer").first).to_contain_text("tokens/s", timeout=LONG_MS)
            print(f"first figures after {time.monotonic() - began:.1f} s")
            answered(page, plan)
            expect(page.locator("#answer")).to_have_text("It fits")
            expect(page.locator("body")).to_contain_text("RTX 4090")
            print(f"the answer after {time.monotonic() - began:.1f} s")
            imported = ask(page, AXOLOTL, "RTX 4090")
            expect(page.locator("[aria-label='About the job']")).to_contain_text("Axolotl")
            answered(page, imported)
            expect(page.locator("#answer")).to_have_text("It fits")
        job = (EXAMPLE / "job.yaml").read_text(encoding="utf-8")
        run = ask(page, job, button=RUN_IT)
        expect(page.locator("#lines")).to_contain_text("probe 0", timeout=LONG_MS)
        page.click(CANCEL)
        expect(page.locator("#state")).to_have_text("cancelled")
        page.click("button:has-text('Resume')")
        expect(page.locator(CANCEL)).to_be_visible()
        answered(page, run)
        expect(page.locator("#files")).to_have_text("Verified bundle")
        expect(page.frame_locator("#report").locator("#recommendation")).to_contain_text("tokens/s")
        with page.expect_download() as download:
            page.click("text=Download the bundle")
        archive = tmp_path / "bundle.zip"
        download.value.save_as(archive)
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    command = ["bash", "bundle/launch.sh", "--max_steps", "2", "--output_dir", "out"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    state = json.loads((next((tmp_path / "out").rglob("trainer_state.json"))).read_text())
    assert state["global_step"] == 2
