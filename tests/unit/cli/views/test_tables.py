"""Tables and lines of measurements, for people."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.live import TerminalListener
from autotune.cli.views.tables import measurement_table, print_report, print_space, report_table
from autotune.report.gather import content_of
from autotune.report.probes import lines_of, probe_list
from autotune.report.sections import sections
from autotune.report.words import describe, describe_measurement
from autotune.run.past_run import reopen
from autotune.run.verdict import Verification
from tests.unit.builders import (
    GIB,
    bad,
    make_candidate,
    make_estimate,
    make_job,
    make_record,
    make_space,
    ok,
)
from tests.unit.past_run import make_whole_run
from tests.unit.report.hostile import hostile

GOOD = replace(ok(200.0, GIB, 0.01), step_time_s=0.5, seconds=3.0)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return content_of(reopen(make_whole_run(tmp_path_factory.mktemp("whole")).path))


@pytest.fixture
def shown(content):
    """Prints a section's table of some probes, of which 10 GiB may be recommended."""

    def table(records, names=(), estimates=None, *, of="candidates", width=200, best=()):
        probes = probe_list(records, list(names), estimates or {}, 10 * GIB, best, {})
        held = replace(content, lines=tuple(lines_of(records, probes)))
        (found,) = next(one for one in sections(held) if one.name == of).tables
        return printed(report_table(found, width), width).splitlines()

    return table


def printed(renderable, width=200) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("measurement", "line"),
    [
        (GOOD, "200 tokens/s +-1.0%, peak 1 GiB"),
        (replace(GOOD, relative_uncertainty=None, peak_memory_bytes=None), "200 tokens/s"),
        (bad("oom", missing_bytes=3 * GIB), "oom: at least 3 GiB short"),
        (bad("oom"), "oom: it was oom"),
        (bad("timeout"), "timeout: it was timeout"),
    ],
)
def test_a_measurement_in_a_line(measurement, line):
    assert describe_measurement(measurement) == line


def test_a_candidate_is_described_by_its_batch_and_what_varies():
    candidate = make_candidate(2, 8, padding_free=True, lora_target_modules=["q_proj", "k_proj"])
    free = ["per_device_train_batch_size", "padding_free", "gradient_checkpointing", "loss_type"]
    assert describe(candidate, free) == "2x8 padding-free chunked_nll"
    assert describe(candidate, ["max_length"]) == "2x8 max_length=1024"
    assert describe(candidate, ["lora_target_modules"]) == "2x8 lora_target_modules=q_proj,k_proj"
    shared = replace(candidate, values={**candidate.values, "beta": 0.04})
    assert describe(shared, ["beta"]) == "2x8 beta=0.04"


def test_names_that_look_like_markup_are_shown_as_they_are(shown):
    record = make_record(0, bad("crash"), loss_type="[bold]x", lora_target_modules=["[/red]", "y"])
    _, row = shown([record], ["loss_type", "lora_target_modules"])
    assert "4x4 [bold]x lora_target_modules=[/red],y" in row
    whole = printed(measurement_table(record.candidate, replace(GOOD, reason="see [/log]")))
    assert "loss_type=[bold]x" in whole
    assert "ok: see [/log]" in whole


def test_an_own_space_that_looks_like_markup_is_shown_as_it_is():
    space = make_space(make_job())
    knob = replace(space.knobs[0], name="[bold]", values=("[red]",), why="because of [/x]")
    console = PlainConsole(file=StringIO(), width=200, color_system=None)
    print_space(replace(space, knobs=(knob,)), console)
    table = console.file.getvalue()
    for text in ("[bold]", "[red]", "because of [/x]"):
        assert text in table


def test_the_progress_of_a_run_is_told_literally():
    console = PlainConsole(file=StringIO(), width=200, color_system=None)
    listener = TerminalListener(console)
    listener.trying("`lora_target_modules: [q]`")
    listener.stopped("all [/done]")
    listener.verified(Verification(verified=False, reason="see [log]"))
    assert console.file.getvalue().splitlines() == [
        "nothing fits; trying `lora_target_modules: [q]` ...",
        "search ends: all [/done]",
        "NOT verified: see [log]",
    ]


def test_every_candidate_has_one_line_and_what_is_missing_is_blank(shown):
    records = [make_record(n, m) for n, m in enumerate((GOOD, bad("crash"), None))]
    records.append(make_record(3, replace(GOOD, peak_memory_bytes=11 * GIB)))
    rows = shown([*records, replace(records[0], number=4)], best=(0,))
    assert " ".join(rows[0].split()) == "probe candidate tokens/s from peak outcome"
    assert rows[1].startswith("0, 4 ") and rows[1].split()[-1] == "recommended"
    assert rows[2].split() == ["1", "4x4", "crash"]
    assert rows[3].split() == ["2", "4x4", "running"]
    assert " ".join(rows[4].split()) == "3 4x4 200 +-1.0% measured 11 GiB over headroom"
    assert len(rows) == 5


def test_one_speed_a_candidate_and_where_it_is_from(shown):
    short = replace(bad("oom", missing_bytes=3 * GIB), memory_limit_bytes=12 * GIB)
    records = [make_record(0, GOOD), make_record(1, short), make_record(2, bad("crash"))]
    estimates = {
        record.candidate.key: make_estimate(3 * GIB, tokens_per_s=150.0) for record in records[:2]
    }
    rows = shown(records, estimates=estimates, best=(0,))
    assert " ".join(rows[1].split()) == "0 4x4 200 +-1.0% measured 1 GiB recommended"
    assert " ".join(rows[2].split()) == "1 4x4 150 estimated at least 15 GiB oom"
    assert rows[3].split() == ["2", "4x4", "crash"]


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_is_legible_at_eighty_columns(shown, width):
    names = ["loss_type", "attn_implementation", "lora_target_modules", "max_length"]
    varied = {"attn_implementation": "flash_attention_3", "lora_target_modules": ["q_proj"] * 3}
    records = [
        make_record(number, replace(GOOD, tokens_per_s=123456.0, peak_memory_bytes=size * GIB),
                    max_length=1024 + number % 11, **varied)
        for number, size in enumerate([9] * 11 + [70, 9])
    ]  # fmt: skip
    rows = shown(records, names, width=width)
    assert len(rows) == 1 + 11 and max(map(len, rows)) <= width
    for row in rows[1:]:
        assert "\N{HORIZONTAL ELLIPSIS}" in row
        figures = r"123456 \+-\d\.\d% +measured +(9|70) GiB +(ok|over headroom) *$"
        assert re.search(figures, row), row
    assert rows[1].startswith("0, 11 ") and rows[1].rstrip().endswith("over headroom")


def test_what_was_expected_stands_beside_each_candidate_where_it_is_known(shown):
    records = [make_record(number, GOOD) for number in range(3)]
    estimates = {
        records[0].candidate.key: make_estimate(3 * GIB, tokens_per_s=150.0),
        records[1].candidate.key: make_estimate(2 * GIB),
    }
    header, *rows = shown(records, estimates=estimates, of="expected", width=80)
    assert header.split("  ")[-1].strip() == "peak off" and "candidate" not in header
    assert " ".join(rows[0].split()) == "0 200 150 -25.0% 1 GiB 3 GiB +200.0%"
    assert " ".join(rows[1].split()) == "1 200 1 GiB 2 GiB +100.0%"
    assert len(rows) == 2


def test_one_probe_in_full_leaves_out_what_is_not_known():
    lines = printed(measurement_table(make_candidate(), GOOD)).splitlines()
    figures = dict(line.split(maxsplit=1) for line in lines)
    assert figures["tokens_per_s"].strip() == "200"
    assert figures["peak_memory_bytes"].strip() == "1 GiB"
    assert figures["step_time_s"].strip() == "500 ms"
    assert figures["relative_uncertainty"].strip() == "1.0%"
    assert "gradient_norm" not in figures


def test_a_terminal_gets_whole_words_and_a_file_whole_lines(tmp_path):
    content = content_of(reopen(make_whole_run(tmp_path).path))
    texts = {}
    for is_terminal in (True, False):
        file = StringIO()
        width = 80 if is_terminal else 160
        console = PlainConsole(
            file=file, width=width, force_terminal=is_terminal, color_system=None
        )
        print_report(content, console)
        texts[is_terminal] = file.getvalue()
    shown = texts[True].splitlines()
    assert max(map(len, shown)) <= 80
    assert "recommended: probe 1" in shown
    for line in (*content.compared, *content.skipped, *content.said):
        assert line in texts[False].splitlines()
        assert " ".join(line.split()) in " ".join(texts[True].split())


def test_no_text_of_a_run_obeys_itself_in_a_terminal(tmp_path):
    content = hostile(content_of(reopen(make_whole_run(tmp_path).path)))
    file = StringIO()
    print_report(content, PlainConsole(file=file, width=160, color_system=None))
    assert "\\x1b[31m" in file.getvalue()
    assert not {"\x1b", "\x00", "\u202e", "\ud800"} & set(file.getvalue())
