"""A report as HTML: the figures of its tables and plots; no text becomes part of the page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from autotune.errors import CONTROLS
from autotune.report.figures import figures
from autotune.report.gather import content_of
from autotune.report.html import html_report, policy, scripts
from autotune.report.sections import sections
from autotune.run.past_run import reopen
from tests.unit.past_run import make_run, make_whole_run
from tests.unit.report.hostile import TEXT, hostile

VOID = {"meta", "link", "br", "img"}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return content_of(reopen(make_whole_run(tmp_path_factory.mktemp("whole")).path))


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text, scripts and styles apart."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.scripts = [], [], []
        self.open = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": []}.get(inside, self.texts).append(data)


def cells(page):
    return [text.strip() for text in page.texts if text.strip()]


def test_every_cell_of_a_table_is_in_the_page(content):
    page = cells(Page(html_report(content)))
    for section in sections(content):
        assert section.tables, section.name
        for table in section.tables:
            assert {cell for row in table.rows for cell in row if cell} <= set(page)


def test_speeds_are_the_same_in_tables_and_plots(content):
    plots = figures(content)
    assert plots.keys() == {"candidates", "memory"}
    speeds = sorted(speed for trace in plots["candidates"]["data"] for speed in trace["y"])
    placed = [p for p in content.probes if p.peak_memory_bytes or p.least_bytes]
    assert speeds == sorted(probe.tokens_per_s or 0.0 for probe in placed)
    bars = [trace for trace in plots["memory"]["data"] if trace["type"] == "bar"]
    for place, memory in enumerate(content.memory):
        assert sum(bar["x"][place] for bar in bars) == pytest.approx(memory.estimated_bytes / 2**30)


def test_where_no_speed_was_measured_there_is_no_plot_of_speeds(content):
    failed = [p for p in content.probes if p.outcome == "oom"]
    assert failed and all(p.peak_memory_bytes or p.least_bytes for p in failed)
    assert "candidates" not in figures(replace(content, probes=tuple(failed)))


def test_the_words_of_a_report_are_explained_at_its_end(content):
    *_, last = sections(content)
    terms = [term for term, _ in last.tables[0].rows]
    assert last.name == "words" and terms[0] in content.headline and "checkpointing" in terms
    assert "What the words mean" in html_report(content)


def test_each_hover_says_whether_it_was_measured(content):
    for name in ("candidates", "memory"):
        for trace in figures(content)[name]["data"]:
            for text in trace.get("hovertext", ()):
                assert any(word in text for word in ("measured", "estimated", "needs at least"))


def test_a_page_has_two_scripts_and_no_address(content):
    text = html_report(content)
    page = Page(text)
    kinds = [attrs.get("type") for tag, attrs in page.elements if tag == "script"]
    assert [kind for kind in kinds if kind is None] == [None, None]
    assert set(kinds) == {None, "application/json"}
    for _, attrs in page.elements:
        assert not {"onclick", "onload", "onerror", "srcset", "action"} & attrs.keys()
        for name in ("src", "href"):
            assert attrs.get(name, "#").startswith(("#", "data:"))
    (said,) = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert said == policy() and "http" not in said and "'unsafe-inline'" not in said.split(";")[1]
    assert re.search(r"url\(|@import", text[: text.index("</style>")]) is None


def test_scripts_can_stand_in_a_page():
    for script in scripts():
        assert not re.search(r"</script|<!--|\r|\0", script, flags=re.IGNORECASE)


def test_no_text_of_a_run_becomes_part_of_the_page(content):
    quiet, loud = Page(html_report(content)), Page(html_report(hostile(content)))
    assert [tag for tag, _ in loud.elements] == [tag for tag, _ in quiet.elements]
    assert [attrs.keys() for _, attrs in loud.elements] == [
        attrs.keys() for _, attrs in quiet.elements
    ]
    text = html_report(hostile(content))
    ours = "".join(scripts())
    assert CONTROLS.search(text.replace(ours[:-1], "").replace(scripts()[0], "")) is None
    assert text.encode("utf-8")
    figures_of = [json.loads(script) for script in loud.scripts[:2]]
    assert all(figure["data"] for figure in figures_of)
    for figure in figures_of:
        for trace in figure["data"]:
            for shown in trace.get("hovertext", ()):
                assert "<script" not in shown and "<a " not in shown and "\n" not in shown
    assert "49" not in TEXT and "{{ 7*7 }}" in "".join(loud.texts)


def test_what_is_not_known_is_a_sentence_and_no_plot(tmp_path):
    content = content_of(reopen(make_run(tmp_path, ()).path))
    assert figures(content) == {}
    text = html_report(content)
    assert "Nothing was probed." in text and "nothing of these was estimated" in text
    page = Page(text)
    assert not [a for tag, a in page.elements if tag == "div" and a.get("class") == "plot"]
    empty = [section for section in sections(content) if not section.tables]
    assert all(section.text for section in empty)


def test_what_is_over_the_headroom_says_so(content):
    ruled = next(section for section in sections(content) if section.name == "ruled-out")
    failed = {row[0]: row for row in ruled.tables[0].rows}
    assert failed["4"][3] == "it leaves less memory free than the headroom asks for"
    passed = replace(content.probes[0], standing="failed", reason="it diverged")
    changed = replace(content, probes=(passed,))
    ruled = next(section for section in sections(changed) if section.name == "ruled-out")
    assert ruled.tables[0].rows[0][3] == "its bundle failed verification: it diverged"


def test_a_peak_that_is_a_bound_says_so(content):
    bound = replace(content.memory[2], at_least=True)
    changed = replace(content, memory=(*content.memory[:2], bound))
    memory = next(section for section in sections(changed) if section.name == "memory")
    sums = next(row for row in memory.tables[0].rows if row[0] == "all, estimated")
    assert [text.startswith("at least ") for text in sums[1:]] == [False, False, True]
    (oom,) = [
        trace for trace in figures(content)["candidates"]["data"] if trace["name"] == "failed"
    ]
    assert oom["x"] == [75.0]
    assert oom["hovertext"] == [
        f"probe 2: {content.probes[2].candidate}<br>oom: it was oom<br>needs at least 75 GiB"
    ]
