"""The report of a run as a worker sends it, and as a browser or a program gets it."""

from pathlib import Path
from typing import Any

import pytest

from autotune.report.gather import content_of
from autotune.report.html import html_report, scripts
from autotune.run.past_run import reopen
from autotune.server.access.requests import POLICY
from tests.unit.past_run import make_whole_run
from tests.unit.report.hostile import hostile
from tests.unit.server.conftest import JOB, Served
from tests.unit.server.test_requests import WORKER


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with every text hostile."""
    folder: Path = tmp_path_factory.mktemp("whole")
    return html_report(hostile(content_of(reopen(make_whole_run(folder).path))))


def sent(served: Served, **files: str) -> str:
    """The path of a run of which a worker has sent these files, by the ends of their names."""
    job = {**JOB, "model": str(served.models / "m")}
    asked = served.submit(job, "run")
    assert asked.status_code == 202, asked.text
    headers: Any = served.token("worker", "w")
    body = {"worker": WORKER, "kinds": ["run"]}
    leased = served.client.post("/api/v1/worker/lease", json=body, headers=headers).json()
    path = f"/api/v1/worker/works/{leased['id']}/files"
    for end, text in files.items():
        content = text.encode()
        answer = served.client.put(
            f"{path}/report.{end}?worker=w", content=content, headers=headers
        )
        assert answer.status_code == 204, answer.text
    return f"/runs/{leased['id']}/report"


def test_the_page_of_a_report_is_confined(served: Served, page: str) -> None:
    path = sent(served, html=page, txt="the text")
    kept = served.service.works.file(path.split("/")[2], "report.html")
    assert kept == page.encode()
    for url in (path, f"/api/v1{path}?format=html"):
        answer = served.client.get(url)
        assert (answer.status_code, answer.text) == (200, page)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        rules = dict(
            rule.strip().partition(" ")[::2]
            for rule in answer.headers["content-security-policy"].split(";")
        )
        assert rules["sandbox"] == "allow-scripts"
        assert rules["default-src"] == rules["form-action"] == "'none'"
        assert rules["frame-ancestors"] == "'self'"
        assert rules["script-src"].count("'sha256-") == len(scripts()) == 2
        assert "unsafe" not in rules["script-src"] and "connect-src" not in rules
        assert answer.headers["cross-origin-opener-policy"] == "unsafe-none"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
    elsewhere = served.client.get(path.removesuffix("/report"))
    assert elsewhere.headers["content-security-policy"] == POLICY


def test_a_report_is_text_unless_its_page_is_asked_for(served: Served, page: str) -> None:
    path = sent(served, html=page, txt="the text")
    answer = served.client.get(f"/api/v1{path}")
    assert (answer.text, answer.headers["content-type"]) == (
        "the text",
        "text/plain; charset=utf-8",
    )
    assert served.client.get(f"/api/v1{path}?format=text").text == "the text"
    assert served.client.get(f"/api/v1{path}?format=pdf").status_code == 422


def test_without_a_page_the_text_is_shown(served: Served) -> None:
    path = sent(served, txt="<b>the text</b>")
    answer = served.client.get(path)
    assert answer.text == "<b>the text</b>"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert served.client.get(f"/api/v1{path}?format=html").status_code == 404


def test_a_page_that_a_worker_made_up_runs_no_script_of_its_own(served: Served) -> None:
    made_up = "<script>fetch('/api/v1/runs')</script>"
    path = sent(served, html=made_up)
    answer = served.client.get(path)
    assert answer.text == made_up
    assert "sandbox allow-scripts" in answer.headers["content-security-policy"]
