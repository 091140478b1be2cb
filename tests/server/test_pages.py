"""The pages, in a real browser, of a real service with its worker."""

import io
import json
import re
import zipfile
from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from autotune.client import Client
from autotune.server.access.tokens import Tokens
from autotune.server.service import DATABASE
from autotune.server.store.database import open_database, sqlite_url
from tests.cpu.conftest import LLAMA
from tests.guards import some_of
from tests.server.browser import breaches, opened, overflow
from tests.server.conftest import Served
from tests.server.finished_run import FinishedRun
from tests.server.simulated_worker import SURVEYED, SimulatedWorker
from tests.server.test_server_paths import assert_no_path

LONG_MS = 600_000.0
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
WRONG = "model: qwen2.5-0.5b\nmethod: stf\nglobal_batch_size: -3\nbudgett: 5\n"
AXOLOTL = """\
base_model: Qwen/Qwen2.5-0.5B
datasets: [{path: mhenrichsen/alpaca_2k_test, type: alpaca}]
adapter: lora
lora_r: 16
lora_alpha: 32
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 4
wandb_project: mine
"""
PLAN_IT, RUN_IT = "button:has-text('Plan it')", "button:has-text('Run it here')"
JSON = {"Content-Type": "application/json"}
CANCEL = "button:has-text('Cancel')"

# What htmx swaps in is waited for by Playwright; only what takes the worker long is given longer.
expect.set_options(timeout=60_000)


@pytest.fixture
def page(browser: Browser, service_url: Served) -> Iterator[Page]:
    with opened(browser, service_url.url) as page:
        yield page


@pytest.fixture(scope="module")
def planned(browser: Browser, service_url: Served) -> str:
    """The path of a plan that was asked for in the browser, and has ended."""
    with opened(browser, service_url.url) as page:
        page.goto("/")
        page.fill("#text", json.dumps(LLAMA))
        page.select_option("#tuning", "full")
        page.fill("#batch", "4")
        page.fill("#max-length", "64")
        page.fill("#device", "24 gb")
        page.click(PLAN_IT)
        page.wait_for_url(re.compile("/plans/"))
        page.wait_for_selector("#answer", timeout=LONG_MS)
        return page.url.removeprefix(service_url.url)


@pytest.fixture(scope="module")
def tuned(service_url: Served, finished: FinishedRun) -> str:
    """The path of a run that has ended."""
    return SimulatedWorker(service_url).replay(finished)


def test_a_plan_answers_with_numbers_choices_and_files(
    page: Page, planned: str, service_url: Served
) -> None:
    page.goto(planned)
    expect(page.locator("#answer")).to_have_text("It fits")
    expect(page.locator(".card.good")).to_contain_text("of 23.6 GiB")
    assert page.locator("#choices + p + .scroll tbody tr, #choices + .scroll tbody tr").count() > 1
    assert page.locator(".bar rect").count() > 2
    page.click("text=What the words mean")
    expect(page.locator("#legend")).to_contain_text("rows in a forward pass")
    link = page.get_attribute("text=Download the bundle", "href")
    archive = requests.get(f"{service_url.url}{link}", timeout=60)
    assert "bundle/launch.sh" in zipfile.ZipFile(io.BytesIO(archive.content)).namelist()
    page.click("summary:has-text('sft_config.yaml')")
    expect(page.locator("[aria-label='sft_config.yaml']")).to_contain_text("per_device_train")


def test_no_page_of_a_plan_names_a_folder_of_the_service(planned: str, service_url: Served) -> None:
    work = Client(service_url.url).get("plan", planned.rpartition("/")[2])
    assert "bundle.zip" in work["files"]
    assert_no_path(service_url, work)


def test_all_problems_of_a_job_are_shown_at_once(page: Page) -> None:
    page.goto("/")
    page.fill("#text", WRONG)
    page.click(PLAN_IT)
    problems = page.locator("#problems li")
    expect(problems.first).to_be_visible()
    text = page.inner_text("#problems")
    assert problems.count() >= 4
    for word in ("stf", "-3", "budgett", "dataset"):
        assert word in text
    assert page.evaluate("document.activeElement.id") == "problems"


def test_a_pasted_file_of_axolotl_is_planned_and_says_what_was_not_taken_over(page: Page) -> None:
    page.goto("/")
    page.fill("#text", AXOLOTL)
    page.fill("#device", "RTX 4090")
    page.click(PLAN_IT)
    page.wait_for_url(re.compile("/plans/"))
    origin = page.locator("[aria-label='About the job']")
    expect(origin).to_contain_text("Axolotl")
    expect(origin).to_contain_text("wandb_project")
    expect(page.locator("#now, #answer").first).to_be_visible()
    if page.locator(CANCEL).is_visible():
        page.click(CANCEL)


def test_a_run_is_followed_to_its_bundle_and_its_report(page: Page, tuned: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(tuned)
    expect(page.locator("#files")).to_have_text("Verified bundle")
    page.click(".command button")
    expect(page.locator(".command button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("-bundle.zip && bash bundle/launch.sh")
    report = page.frame_locator("#report")
    expect(report.locator("#candidates .plot .points path").first).to_be_visible()
    expect(report.locator("#recommendation")).to_contain_text("tokens/s")
    expect(page.locator("#report[height]")).to_have_count(1)
    inner = report.locator("body").evaluate("body => body.offsetHeight")
    assert abs(page.locator("#report").evaluate("frame => frame.clientHeight") - inner) < 4
    page.click("text=What happened")
    expect(page.locator("#lines")).to_contain_text("probe")


def test_a_run_is_cancelled_and_taken_up_again_here_and_elsewhere(
    page: Page, tuned: str, service_url: Served
) -> None:
    worker = SimulatedWorker(service_url)
    page.goto(tuned)
    page.click("text=Change it")
    page.fill("#text", page.input_value("#text").replace('"probes": 4', '"probes": 9'))
    page.click(RUN_IT)
    page.wait_for_url(re.compile("/runs/[0-9a-f]{16}"))
    assert page.url.endswith(worker.take())
    worker.say("surveyed", **SURVEYED)
    expect(page.locator("#state")).to_have_text("running")
    with page.expect_response(lambda answer: answer.url.endswith("/cancel")):
        page.click(CANCEL)
    worker.end(130)
    expect(page.locator("#state")).to_have_text("cancelled")
    requests.post(f"{service_url.url}/api/v1{worker.path}/resume", headers=JSON, timeout=60)
    expect(page.locator(CANCEL)).to_be_visible()  # it looks for itself
    page.click(CANCEL)
    expect(page.locator("#state")).to_have_text("cancelled")
    page.click("button:has-text('Resume')")
    expect(page.locator(CANCEL)).to_be_visible()
    page.click(CANCEL)
    expect(page.locator("#state")).to_have_text("cancelled")


def test_works_are_searched(page: Page, planned: str) -> None:
    page.goto("/works")
    everything = page.locator("#found tbody tr").count()
    page.fill("#text", "no-such-model")
    expect(page.locator("#found")).to_contain_text("Nothing is found")
    page.fill("#text", "4090 llama")
    expect(page.locator(f"#found a[href='{planned}']")).to_be_visible()
    assert page.locator("#found tbody tr").count() < everything


@pytest.mark.parametrize("scheme", some_of(["light", "dark"], ["light"], "service"))
def test_pages_are_accessible_and_fit_a_phone(
    browser: Browser, service_url: Served, planned: str, tuned: str, scheme: str
) -> None:
    paths = ("/", planned, tuned, f"{tuned}/report", "/works", "/works?text=no-such-model")
    found = {}
    with opened(browser, service_url.url, color_scheme=scheme, **PHONE) as page:
        for path in (*paths, "/nothing"):
            page.goto(path)
            page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
            found[path] = breaches(page), overflow(page)
    assert {path: what for path, what in found.items() if what != ([], 0)} == {}


def test_a_job_in_the_box_says_what_the_fields_would(page: Page) -> None:
    page.goto("/")
    fields = page.locator("[data-fields]")
    hub = "https://huggingface.co/Qwen/Qwen2.5-0.5B"
    for text, shown in (("qwen2.5-7b", True), (hub, True), ('{"hidden_size": 8}', True),
                        ("model: x", False), (AXOLOTL, False)):  # fmt: skip
        page.fill("#text", text)
        expect(fields).to_be_visible(visible=shown)
    page.fill("#text", "qwen2.5-7b")
    page.select_option("#method", "grpo")
    expect(page.locator("[data-rewards]")).to_be_visible()


def test_a_page_says_in_words_that_the_service_is_away(page: Page, service_url: Served) -> None:
    worker, path = simulated_run(service_url)
    page.goto(path)
    status = page.locator("[role=status]")
    expect(status).to_have_text("")
    page.evaluate("htmx.trigger('#work', 'htmx:sseError')")
    expect(status).to_contain_text("does not answer")
    page.evaluate("htmx.trigger('#work', 'htmx:sseOpen')")
    expect(status).to_have_text("")
    worker.end(3, "error: the disk is full")


def test_a_plan_is_asked_for_by_keyboard_alone(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("model: qwen2.5-0.5b\nmethod: stf\n")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == "Plan it":
            break
    outline = "getComputedStyle(document.activeElement).outlineWidth"
    assert page.evaluate(outline) == "3px"
    page.keyboard.press("Enter")
    expect(page.locator("#problems li").first).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(page.locator(PLAN_IT)).to_be_focused()


def test_a_browser_signs_in_and_out(browser: Browser, service_url: Served) -> None:
    database = open_database(sqlite_url(service_url.folder / DATABASE))
    tokens = Tokens(database)
    token = tokens.add("ann", "user")
    try:
        with opened(browser, service_url.url) as page:
            page.goto("/works?kind=run")
            assert page.url.endswith("/login?next=%2Fworks%3Fkind%3Drun")
            assert breaches(page) == []
            page.fill("#token", "wrong")
            page.keyboard.press("Enter")
            expect(page.locator("[role=alert]")).to_have_text("This token is not known here.")
            page.fill("#token", token)
            page.keyboard.press("Enter")
            page.wait_for_url(re.compile(r"/works\?kind=run"))
            cookie = page.context.cookies()[0]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            page.click("text=Sign out")
            page.wait_for_url(re.compile("/login"))
            page.goto("/")
            assert "/login" in page.url
        elsewhere = {"Origin": "https://elsewhere.example"}
        answer = requests.post(
            f"{service_url.url}/login", data={"token": token}, headers=elsewhere, timeout=60
        )
        assert answer.status_code == 403
        assert not answer.cookies
    finally:
        tokens.remove_named("ann")
        database.close()


def test_what_changes_something_comes_from_our_pages(service_url: Served) -> None:
    """No secret, no change; a return address is never another host's."""
    answer = requests.post(f"{service_url.url}/", data={"text": "qwen2.5-0.5b"}, timeout=60)
    assert answer.status_code == 403
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'; style-src 'self'" in policy


def simulated_run(service: Served) -> tuple[SimulatedWorker, str]:
    """A run of a simulated worker, with two probes, the first of which failed."""
    worker = SimulatedWorker(service)
    path = worker.ask()
    worker.say("surveyed", **SURVEYED)
    worker.say("ruled_out", reasons={"it does not fit <b>by far</b>": 7})
    traceback = "torch.OutOfMemoryError: tried to allocate 2 GiB"
    worker.probe(0, "oom", {}, peak_memory_bytes=79 * 2**30, failure={"traceback": traceback})
    worker.probe(1, "ok", {}, tokens_per_s=5000.0, peak_memory_bytes=30 * 2**30)
    return worker, path


def test_probes_come_as_they_end_and_a_failure_says_why(page: Page, service_url: Served) -> None:
    worker, path = simulated_run(service_url)
    page.goto(path)
    worker.say_line("probe 1: out of memory: <b>tried</b> to allocate 2 GiB")
    expect(page.locator("#lines")).to_contain_text("<b>tried</b> to allocate 2 GiB")
    expect(page.locator("#now")).to_contain_text("searching")
    worker.say_line("probe 2: 6k tokens/s")
    expect(page.locator("#lines div")).to_have_count(2)
    worker.end(3, "error: the disk is full")
    expect(page.locator("#work")).to_contain_text("the disk is full")
    expect(page.locator("button:has-text('Resume')")).to_be_visible()


def test_a_page_that_was_cut_off_goes_on_after_the_last_it_has(service_url: Served) -> None:
    """Its browser says how far it is; what came before is not sent again."""
    worker, path = simulated_run(service_url)
    for number in range(3):
        worker.say_line(f"line {number}")
    url = f"{service_url.url}{path}/events"
    with requests.get(url, headers={"Last-Event-ID": "7"}, stream=True, timeout=60) as answer:
        text = ""
        for chunk in answer.iter_content(None):
            text += chunk.decode()
            if "id: 9\n" in text:
                break
    assert "line 1" in text and "line 2" in text and "line 0" not in text
    worker.end(3, "error: the disk is full")
    whole = requests.get(url, timeout=60).text
    assert whole.endswith("event: end\ndata: \n\n") and "the disk is full" in whole
    assert whole.partition("event: update")[2].count('id="line-8"') >= 1


@pytest.mark.parametrize(("code", "text"), [(1, "Nothing fits"), (4, "was measured"), (130, "")])
def test_whatever_a_run_comes_to_is_shown(service_url: Served, code: int, text: str) -> None:
    worker, path = simulated_run(service_url)
    worker.end(code, "error: ended", {"outcome": "nothing_fits"}, text)
    answer = requests.get(f"{service_url.url}{path}", timeout=60)
    assert answer.status_code == 200
    assert text in answer.text
    assert "event: end" in requests.get(f"{service_url.url}{path}/events", timeout=60).text
