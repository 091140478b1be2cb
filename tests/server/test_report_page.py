"""The page of a report in a real browser: from disk, and from a service under its policy."""

from pathlib import Path

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from autotune.report.html import html_report
from tests.guards import some_of
from tests.server.browser import breaches, opened, overflow
from tests.server.conftest import Served
from tests.server.finished_run import FinishedRun
from tests.server.simulated_worker import SimulatedWorker
from tests.unit.report.hostile import hostile

PLOTS = 2
EACH_TIME = [("plain", "light", (360, 1200)), ("hostile", "dark", (360, 1200))]
ALL = [(name, scheme, (360, 768, 1200, 1600)) for name in ("plain", "hostile")
       for scheme in ("light", "dark")]  # fmt: skip
"""Which report, in which colours, at which widths."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, finished: FinishedRun) -> dict[str, Path]:
    """A report as it is, and one in which every text is hostile."""
    folder: Path = tmp_path_factory.mktemp("reports")
    pages = {
        "plain": finished.files["report.html"],
        "hostile": html_report(hostile(finished.content)).encode(),
    }
    files = {name: folder / f"{name}.html" for name in pages}
    for name, file in files.items():
        file.write_bytes(pages[name])
    return files


def drawn(page: Page) -> None:
    """Every plot is as wide as its place, and has its marks, its axes and its texts."""
    expect(page.locator(".plot")).to_have_count(PLOTS)
    for number in range(PLOTS):
        plot = page.locator(".plot").nth(number)
        gap = "svg => svg.clientWidth - svg.closest('.plot').clientWidth"
        assert {svg.evaluate(gap) for svg in plot.locator(".main-svg").all()} == {0}
        assert plot.locator(".points path, .point path").count() > 0
        assert plot.locator(".xtick text").count() > 1
        assert plot.locator(".ytick text").count() > 0


def cut_texts(page: Page) -> list[str]:
    """Texts of plots that reach beyond their plot, to the left or to the right."""
    texts: list[str] = page.evaluate(
        "[...document.querySelectorAll('.plot text')].filter(text => {"
        "  const inner = text.getBoundingClientRect();"
        "  const outer = text.closest('.plot').getBoundingClientRect();"
        "  return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1);"
        "}).map(text => text.textContent)"
    )
    return texts


@pytest.mark.parametrize("case", some_of([*EACH_TIME, *ALL], EACH_TIME, "service"), ids=str)
def test_it_draws_from_disk_at_every_width(
    browser: Browser, reports: dict[str, Path], case: tuple[str, str, tuple[int, ...]]
) -> None:
    """At the end `opened` asserts that nothing was complained of and no host was asked."""
    name, scheme, widths = case
    with opened(browser, reports[name].as_uri(), color_scheme=scheme) as page:
        page.goto(reports[name].as_uri())
        drawn(page)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            inner = page.locator("main section").first.bounding_box()
            assert inner is not None and inner["width"] <= width
            page.evaluate("new Promise(requestAnimationFrame)")  # it draws in the next
            page.evaluate("new Promise(requestAnimationFrame)")
            drawn(page)
            assert overflow(page) == 0
            assert name == "hostile" or cut_texts(page) == []
        assert breaches(page) == []


def test_a_mark_says_what_it_is(browser: Browser, reports: dict[str, Path]) -> None:
    with opened(browser, reports["plain"].as_uri()) as page:
        page.goto(reports["plain"].as_uri())
        plot = page.locator("#candidates .plot")
        plot.scroll_into_view_if_needed()
        for mark in plot.locator(".points path").all():
            box = mark.bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            hover = plot.locator(".hoverlayer .hovertext")
            expect(hover).to_contain_text("probe ")
            expect(hover).to_contain_text("GiB")
            page.mouse.move(0, 0)
            expect(hover).to_have_count(0)


def test_on_paper_it_is_light_and_as_wide_as_the_paper(
    browser: Browser, reports: dict[str, Path]
) -> None:
    with opened(browser, reports["plain"].as_uri(), color_scheme="dark") as page:
        page.goto(reports["plain"].as_uri())
        wide = page.locator(".main-svg").first.evaluate("svg => svg.clientWidth")
        page.evaluate(
            "addEventListener('beforeprint', () => { window.paper = {"
            "width: document.querySelector('.main-svg').clientWidth,"
            "ink: document.querySelector('.xtick text').style.fill}; })"
        )
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
        paper = page.evaluate("window.paper")
        assert paper["width"] == 660 < wide
        assert paper["ink"] == "rgb(28, 33, 40)"
        assert page.locator(".main-svg").first.evaluate("svg => svg.clientWidth") == wide
        page.set_viewport_size({"width": 688, "height": 1000})  # A4 less its margins
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert overflow(page) == 0


def uploaded(service: Served, page: bytes) -> str:
    """The path of a run's report, as a worker has sent it."""
    worker = SimulatedWorker(service)
    path = worker.ask()
    worker.keep_file("report.html", page)
    worker.end(0)
    return f"{path}/report"


def test_a_service_shows_it_under_a_policy_of_its_own(
    browser: Browser, reports: dict[str, Path], service_url: Served
) -> None:
    path = uploaded(service_url, reports["hostile"].read_bytes())
    with opened(browser, service_url.url) as page:
        page.goto(path.removesuffix("/report"))
        page.goto(path)
        drawn(page)
        assert page.evaluate("origin") == "null"
        assert page.locator("table").count() > PLOTS


def test_a_hostile_page_is_confined(browser: Browser, service_url: Served) -> None:
    """One that a worker has made up: its script does not run, and were it to, it would reach
    nothing."""
    made_up = b"""<!doctype html><title>x</title><p id=p>nothing</p>
    <script>document.getElementById("p").textContent = "ran"</script>
    <img src="/static/icon.svg"><form id=f action="/" method=post></form>"""
    path = uploaded(service_url, made_up)
    said: list[str] = []
    with browser.new_context(base_url=service_url.url) as context:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto(path)
        expect(page.locator("#p")).to_have_text("nothing")
        reached = page.evaluate(
            "fetch('/api/v1/runs').then(() => 'reached', error => String(error.name))"
        )
        assert reached == "TypeError"
        assert page.evaluate("origin") == "null"
        with pytest.raises(Exception, match="sandboxed"):
            page.evaluate("document.cookie")
        page.evaluate("document.getElementById('f').submit()")
        assert page.url.endswith(path)
    assert any("violates the following Content Security Policy" in text for text in said)
    assert requests.get(f"{service_url.url}/works", timeout=30).ok
