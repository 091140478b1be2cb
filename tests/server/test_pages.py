"""The pages, in a real browser, of a real service with its worker."""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from autotune.client import Client
from autotune.server.access.tokens import Tokens
from autotune.server.pages.plan_form import is_name
from autotune.server.service import DATABASE
from autotune.server.store.database import open_database, sqlite_url
from tests.cpu.conftest import LLAMA, write_model
from tests.cpu.test_run import FEW
from tests.guards import some_of
from tests.server.browser import breaches, opened, overflow
from tests.server.conftest import Served
from tests.server.finished_run import FinishedRun
from tests.server.simulated_worker import SURVEYED, SimulatedWorker
from tests.server.test_server_paths import assert_no_path

LONG_MS = 600_000.0
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
WRONG = "model: qwen2.5-0.5b\nmethod: stf\nglobal_batch_size: -3\nbudgett: 5\n"
AXOLOTL = "base_model: a/b\ndatasets: [c]\nadapter: lora\nsequence_len: 2048\n"
PLAN_IT, RUN_IT = "button:has-text('Plan it')", "button:has-text('Run it')"
CANCEL = "button:has-text('Cancel')"
PINNED = {**FEW, "gradient_checkpointing": False}

# What htmx swaps in is waited for by Playwright; only what takes the worker long is given longer.
expect.set_options(timeout=60_000)


@pytest.fixture
def page(browser: Browser, service_url: Served) -> Iterator[Page]:
    with opened(browser, service_url.url) as page:
        yield page


def job_text(model: str, **fields: Any) -> str:
    job = {
        "model": model,
        "dataset": {"lengths": {"max": 64, "p50": 20, "p99": 60, "rows": 200}},
        "global_batch_size": 4,
        "max_length": 64,
        "fixed": PINNED,
        **fields,
    }
    return json.dumps(job, indent=1)


@pytest.fixture(scope="module")
def planned(browser: Browser, service_url: Served) -> str:
    """The path of a plan that was asked for in the browser, and has ended."""
    with opened(browser, service_url.url) as page:
        page.goto("/plan")
        page.fill("#text", job_text("config.json"))
        page.click("summary")
        page.fill("#config", json.dumps(LLAMA))
        page.fill("#device", "24 gb")
        page.click(PLAN_IT)
        page.wait_for_url(re.compile("/plans/"))
        page.wait_for_selector("#answer", timeout=LONG_MS)
        return page.url.removeprefix(service_url.url)


@pytest.fixture(scope="module")
def tuned(service_url: Served, finished: FinishedRun) -> str:
    """The path of a run that has ended."""
    return SimulatedWorker(service_url).replay(finished)


@pytest.mark.nightly("service")
def test_a_run_is_asked_for_and_its_probes_stay_when_the_page_is_loaded_again(
    page: Page, service_url: Served
) -> None:
    model = write_model(service_url.models / "tiny", LLAMA)
    page.goto("/runs/new")
    few = {**PINNED, "gradient_checkpointing": True}
    page.fill("#job", job_text(str(model), fixed=few, budget={"probes": 1, "minutes": 5}))
    page.click(RUN_IT)
    page.wait_for_url(re.compile("/runs/[0-9a-f]{16}"))
    page.wait_for_selector("#probes tr", timeout=LONG_MS)
    expect(page.locator("#now")).to_contain_text("Best so far")
    page.reload()
    expect(page.locator("#probes tr").first).to_contain_text("tokens/s")
    page.wait_for_selector("#answer", timeout=LONG_MS)
    rows = page.locator("#probes tr")
    shown = rows.all_inner_texts()
    page.reload()
    expect(rows).to_have_count(len(shown))
    assert rows.all_inner_texts() == shown


@pytest.mark.nightly("service")
def test_a_pasted_config_has_a_first_answer_within_seconds(page: Page) -> None:
    page.goto("/")
    assert page.url.endswith("/plan")
    page.fill("#text", json.dumps(LLAMA))
    expect(page.locator("[data-kind]")).to_contain_text("config.json")
    page.fill("#device", "RTX 4090")
    page.select_option("#tuning", "full")
    page.fill("#batch", "4")
    page.fill("#max-length", "64")
    page.click(PLAN_IT)
    page.wait_for_url(re.compile("/plans/"))
    page.wait_for_selector(".best .bar", timeout=LONG_MS)
    expect(page.locator(".best")).to_contain_text("tokens/s")
    expect(page.locator("#now .count")).to_contain_text("candidates")
    page.reload()
    expect(page.locator(".best .bar, #answer").first).to_be_visible()
    cancel = page.locator(CANCEL)
    if cancel.is_visible():  # a fast machine has the whole answer by now
        cancel.click()
        expect(page.locator("#state")).to_contain_text(re.compile("cancelled|fits"), timeout=90_000)


def test_a_plan_answers_with_numbers_choices_and_files(
    page: Page, planned: str, service_url: Served
) -> None:
    page.goto(planned)
    expect(page.locator("#answer")).to_have_text("It fits")
    expect(page.locator(".card.good")).to_contain_text("of 23.5 GiB")
    assert page.locator("tr.chosen").count() == 1
    assert page.locator(".bar rect").count() > 2
    link = page.get_attribute("text=Download the bundle", "href")
    archive = requests.get(f"{service_url.url}{link}", timeout=60)
    assert "bundle/launch.sh" in zipfile.ZipFile(io.BytesIO(archive.content)).namelist()
    page.click("summary:has-text('sft_config.yaml')")
    expect(page.locator("[aria-label='sft_config.yaml']")).to_contain_text("per_device_train")


def test_no_page_of_a_plan_names_a_folder_of_the_service(planned: str, service_url: Served) -> None:
    work = Client(service_url.url).get("plan", planned.rpartition("/")[2])
    assert "bundle.zip" in work["files"]
    assert_no_path(service_url, work)


def test_sliders_move_the_bar_at_once(page: Page, planned: str, service_url: Served) -> None:
    """First over micro-batches, then, when the worker has estimated them, over lengths too."""
    page.goto(planned)
    page.focus("#slide-size")
    page.keyboard.press("End")
    expect(page.locator("label[for=slide-size] output")).to_have_text("4")
    before = page.get_attribute("#slide-bar", "aria-label")
    page.keyboard.press("Home")
    assert page.get_attribute("#slide-bar", "aria-label") != before
    expect(page.locator("label[for=slide-size] output")).to_have_text("1")
    keep_lengths(service_url, planned)
    page.reload()
    expect(page.locator("#sliders")).to_contain_text("interpolated")
    page.focus("#slide-length")
    page.keyboard.press("End")
    expect(page.locator("#slide-verdict")).to_have_text(
        "30 GiB of 24 GiB · does not fit · 500 tokens/s"
    )
    page.evaluate(
        "([a, b]) => { const s = document.querySelector(a); s.value = b;"
        " s.dispatchEvent(new Event('input', {bubbles: true})); }",
        ["#slide-length", "1500"],
    )
    expect(page.locator("#slide-verdict")).to_have_text("20 GiB of 24 GiB · fits · 750 tokens/s")
    expect(page.locator(".legend li[data-part=activations] b")).to_have_text("15 GiB")


def keep_lengths(service: Served, path: str) -> None:
    """What the worker sends some seconds after a plan."""
    work = requests.get(f"{service.url}/api/v1{path}", timeout=60).json()
    points = [
        {
            "max_length": length,
            "micro_batch": 1,
            "peak_memory_bytes": peak * 2**30,
            "p_oom": risk,
            "tokens_per_s": speed,
            "parts": {"weights": 5 * 2**30, "activations": (peak - 5) * 2**30},
        }
        for length, peak, risk, speed in ((1000, 10, 0.0, 1000.0), (2000, 30, 1.0, 500.0))
    ]
    points[0]["p_oom"], points[1]["p_oom"] = None, None
    content = {
        "schema": 1,
        "lengths": [1000, 2000],
        "micro_batches": [1],
        "limit_bytes": 24 * 2**30,
        "points": points,
    }
    token = (service.folder / "worker.token").read_text(encoding="ascii")
    answer = requests.put(
        f"{service.url}/api/v1/worker/works/{work['id']}/files/lengths.json",
        params={"worker": work["worker"]},
        data=json.dumps(content),
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )
    assert answer.status_code == 204, answer.text


def test_all_problems_of_a_job_are_shown_at_once(page: Page) -> None:
    page.goto("/plan")
    page.fill("#text", WRONG)
    page.click(PLAN_IT)
    problems = page.locator("#problems li")
    expect(problems.first).to_be_visible()
    text = page.inner_text("#problems")
    assert problems.count() >= 4
    for word in ("stf", "-3", "budgett", "dataset"):
        assert word in text
    assert page.evaluate("document.activeElement.id") == "problems"
    page.fill("#text", AXOLOTL)
    page.click(PLAN_IT)
    expect(page.locator("#problems")).to_contain_text("Axolotl")


def test_a_run_is_followed_to_its_bundle(page: Page, tuned: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(tuned)
    expect(page.locator("#answer")).to_have_text("Verified")
    page.click(".command button")
    expect(page.locator(".command button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("-bundle.zip && bash bundle/launch.sh")
    assert page.locator("svg.plot .dot.best").count() == 1
    page.click("text=What it says")
    expect(page.locator("#lines")).to_contain_text("probe")
    page.click("a:has-text('Report')")
    expect(page.locator("#candidates .plot .points path").first).to_be_visible()
    expect(page.locator("#recommendation")).to_contain_text("tokens/s")


def test_a_run_is_cancelled_and_taken_up_again(page: Page, tuned: str, service_url: Served) -> None:
    worker = SimulatedWorker(service_url)
    page.goto(tuned)
    page.click("text=Run again with a change")
    page.fill("#job", page.input_value("#job").replace('"probes": 4', '"probes": 9'))
    page.click(RUN_IT)
    page.wait_for_url(re.compile("/runs/[0-9a-f]{16}"))
    assert page.url.endswith(worker.take())
    worker.say("surveyed", **SURVEYED)
    expect(page.locator("#state")).to_have_text("running")
    page.goto("/runs")
    expect(page.locator("#list-running + .scroll a")).to_be_visible()
    page.go_back()
    with page.expect_response(lambda answer: answer.url.endswith("/cancel")):
        page.click(CANCEL)
    worker.end(130)
    expect(page.locator("#state")).to_have_text("cancelled")
    page.click("button:has-text('Resume')")
    expect(page.locator(CANCEL)).to_be_visible()
    page.click(CANCEL)
    expect(page.locator("#state")).to_have_text("cancelled")


def test_history_is_searched_and_two_are_compared(page: Page, planned: str, tuned: str) -> None:
    page.goto("/history")
    everything = page.locator("#found tbody tr").count()
    page.fill("#text", "no-such-model")
    expect(page.locator("#found")).to_contain_text("Nobody has")
    page.fill("#text", "24 GiB llama")
    expect(page.locator(f"#found a[href='{planned}']")).to_be_visible()
    assert page.locator("#found tbody tr").count() < everything
    page.goto("/history")
    for path in (planned, tuned):
        page.check(f"[name=work][value='{path.rpartition('/')[2]}']")
    page.click("text=Compare two")
    page.wait_for_url(re.compile(r"/compare\?a="))
    expect(page.locator("table.compare").first).to_contain_text("measured")
    expect(page.locator("text=Knobs that differ")).to_be_visible()
    page.goto(f"/compare?a={planned.rpartition('/')[2]}&b=0123456789abcdef")
    expect(page.locator("h1")).to_have_text("Not found")


@pytest.mark.parametrize("scheme", some_of(["light", "dark"], ["light"], "service"))
def test_pages_are_accessible_and_fit_a_phone(
    browser: Browser, service_url: Served, planned: str, tuned: str, scheme: str
) -> None:
    paths = ("/plan", planned, "/runs", "/runs/new", tuned, f"{tuned}/report", "/history")
    compare = f"/compare?a={planned.rpartition('/')[2]}&b={tuned.rpartition('/')[2]}"
    found = {}
    with opened(browser, service_url.url, color_scheme=scheme, **PHONE) as page:
        for path in (*paths, compare, "/nothing"):
            page.goto(path)
            page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
            found[path] = breaches(page), overflow(page)
    assert {path: what for path, what in found.items() if what != ([], 0)} == {}


def test_the_form_names_what_the_service_will_make_of_it(page: Page) -> None:
    page.goto("/plan")
    hub = "https://huggingface.co/Qwen/Qwen2.5-0.5B"
    for text in ("qwen2.5-7b", "a/b", "/data/m", hub, f"{hub}/tree/main", "https://example.org/a/b",
                 f"{hub}/x", "two words", "a/b/c", "a:b"):  # fmt: skip
        page.fill("#text", text)
        named = page.inner_text("#text-kind") == "A model's name."
        assert named == is_name(text), text
    for text, kind in (('{"hidden_size": 8}', "A config.json"), ("model: x", "A job.")):
        page.fill("#text", text)
        expect(page.locator("#text-kind")).to_contain_text(kind)
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


def test_a_chosen_theme_stays(page: Page) -> None:
    page.goto("/plan")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(246, 246, 243)"
    page.click("[data-theme-toggle]")
    page.click("[data-theme-toggle]")
    assert page.evaluate(ground) == "rgb(19, 22, 27)"
    page.reload()
    assert page.evaluate(ground) == "rgb(19, 22, 27)"
    expect(page.locator("[data-theme-toggle]")).to_have_text("Theme: dark")


def test_a_plan_is_asked_for_by_keyboard_alone(page: Page) -> None:
    page.goto("/plan")
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
            page.goto("/history?kind=run")
            assert page.url.endswith("/login?next=%2Fhistory%3Fkind%3Drun")
            assert breaches(page) == []
            page.fill("#token", "wrong")
            page.keyboard.press("Enter")
            expect(page.locator("[role=alert]")).to_have_text("This token is not known here.")
            page.fill("#token", token)
            page.keyboard.press("Enter")
            page.wait_for_url(re.compile(r"/history\?kind=run"))
            cookie = page.context.cookies()[0]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            page.click("text=Sign out")
            page.wait_for_url(re.compile("/login"))
            page.goto("/plan")
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
    answer = requests.post(f"{service_url.url}/plan", data={"text": "qwen2.5-0.5b"}, timeout=60)
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


def test_a_failed_probe_says_why_and_stays_open_while_others_come(
    page: Page, service_url: Served
) -> None:
    worker, path = simulated_run(service_url)
    page.goto(path)
    expect(page.locator("#ruled")).to_contain_text("7 it does not fit <b>by far</b>")
    page.click("#probes summary")
    expect(page.locator("#probes pre")).to_contain_text("tried to allocate 2 GiB")
    expect(page.locator(".probe-log")).to_contain_text("folder of its worker")
    faster = {"use_liger_kernel": True}
    worker.probe(2, "ok", faster, tokens_per_s=6000.0, peak_memory_bytes=40 * 2**30)
    expect(page.locator("#probes tr")).to_have_count(3)
    expect(page.locator("#now")).to_contain_text("6k tokens/s")
    expect(page.locator("#now")).to_contain_text("Liger kernels")
    assert page.locator("svg.plot .dot").count() == 3
    expect(page.locator("#probes pre")).to_be_visible()
    worker.end(3, "error: the disk is full")
    expect(page.locator("#work")).to_contain_text("the disk is full")
    expect(page.locator("#probes tr")).to_have_count(3)
    expect(page.locator("button:has-text('Resume')")).to_be_visible()


def test_a_page_that_was_cut_off_goes_on_after_the_last_it_has(service_url: Served) -> None:
    """Its browser says how far it is; what came before is not sent again."""
    worker, path = simulated_run(service_url)
    worker.end(3, "error: the disk is full")
    url = f"{service_url.url}{path}/events"
    whole = requests.get(url, timeout=60).text
    rest = requests.get(url, headers={"Last-Event-ID": "4"}, timeout=60).text
    for text in (whole, rest):
        assert "id: 6\n" in text
        assert text.endswith("event: end\ndata: \n\n")
        assert "the disk is full" in text
    assert whole.partition("event: update")[2].count('<tr id="probe-') >= 2
    first = rest.split("event: update")[1]
    assert 'id="probe-0-' not in first
    assert 'id="probe-1-6"' in first
    assert "5k tokens/s" in first


UNFIT = {"why": None, "short_bytes": 2**30, "short_is_lower_bound": True, "tried": []}
ENDINGS = {
    "nothing_fits": (1, {"nothing_fits": {**UNFIT, "nearest": None, "advice": None}}, "1 GiB"),
    "nothing_measured": (4, {"nothing_measured": {"why": "every probe crashed"}}, "crashed"),
    "interrupted": (130, {}, "It failed"),
}


@pytest.mark.parametrize("outcome", ENDINGS)
def test_whatever_a_run_comes_to_is_shown(service_url: Served, outcome: str) -> None:
    code, more, shown = ENDINGS[outcome]
    worker, path = simulated_run(service_url)
    nothing = dict.fromkeys(("knobs", "measurement", "probe", "verification", "stop_reason"))
    worker.end(code, "error: ended", {"outcome": outcome, "verified": False, **nothing, **more})
    answer = requests.get(f"{service_url.url}{path}", timeout=60)
    assert answer.status_code == 200
    assert shown in answer.text
    assert "The best of 2 probes" in answer.text
    assert "event: end" in requests.get(f"{service_url.url}{path}/events", timeout=60).text
