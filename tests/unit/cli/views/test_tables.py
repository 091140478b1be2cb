"""Tables and lines of measurements, for people."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from autotune.cli.views.tables import (
    describe,
    describe_measurement,
    measurement_table,
    records_table,
    space_table,
)
from autotune.cli.views.terminal import TerminalListener
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

GOOD = replace(ok(200.0, GIB, 0.01), step_time_s=0.5, seconds=3.0)


def printed(renderable) -> str:
    console = Console(file=StringIO(), width=200, color_system=None)
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


def test_names_that_look_like_markup_are_shown_as_they_are():
    record = make_record(0, bad("crash"), loss_type="[bold]x", lora_target_modules=["[/red]", "y"])
    table = printed(records_table([record], ["loss_type", "lora_target_modules"], {}))
    assert "4x4 [bold]x lora_target_modules=[/red],y" in table
    whole = printed(measurement_table(record.candidate, replace(GOOD, reason="see [/log]")))
    assert "loss_type=[bold]x" in whole
    assert "ok: see [/log]" in whole


def test_an_own_space_that_looks_like_markup_is_shown_as_it_is():
    space = make_space(make_job())
    knob = replace(space.knobs[0], name="[bold]", values=("[red]",), why="because of [/x]")
    table = printed(space_table(replace(space, knobs=(knob,))))
    for text in ("[bold]", "[red]", "because of [/x]"):
        assert text in table


def test_the_progress_of_a_run_is_told_literally():
    console = Console(file=StringIO(), width=200, color_system=None)
    listener = TerminalListener(console)
    listener.trying("`lora_target_modules: [q]`")
    listener.stopped("all [/done]")
    listener.verified(Verification(verified=False, reason="see [log]"))
    assert console.file.getvalue().splitlines() == [
        "nothing fits; trying `lora_target_modules: [q]` ...",
        "search ends: all [/done]",
        "NOT verified: see [log]",
    ]


def test_every_probe_has_a_row_and_what_is_missing_is_blank():
    records = [make_record(n, m) for n, m in enumerate((GOOD, bad("crash"), None))]
    lines = printed(records_table(records, [], {})).splitlines()
    assert len(lines) == 1 + len(records)
    assert lines[1].split() == ["0", "4x4", "ok", "200", "1.0%", "1", "GiB", "3.0", "s"]
    assert lines[2].split() == ["1", "4x4", "crash", "0", "ms"]
    assert lines[3].split() == ["2", "4x4", "running"]


def test_what_was_expected_stands_beside_each_probe_where_it_is_known():
    records = [make_record(number, GOOD) for number in range(3)]
    estimates = {
        records[0].candidate.key: make_estimate(3 * GIB, tokens_per_s=150.0),
        records[1].candidate.key: make_estimate(2 * GIB),
    }
    header, *lines = printed(records_table(records, [], estimates)).splitlines()
    assert header.endswith("expected tokens/s  expected peak")
    assert lines[0].split()[-3:] == ["150", "3", "GiB"]
    assert lines[1].split()[-4:] == ["3.0", "s", "2", "GiB"]
    assert lines[2].split()[-2:] == ["3.0", "s"]
    assert "expected" not in printed(records_table(records, [], {}))


def test_one_probe_in_full_leaves_out_what_is_not_known():
    lines = printed(measurement_table(make_candidate(), GOOD)).splitlines()
    figures = dict(line.split(maxsplit=1) for line in lines)
    assert figures["tokens_per_s"].strip() == "200"
    assert figures["peak_memory_bytes"].strip() == "1 GiB"
    assert figures["step_time_s"].strip() == "500 ms"
    assert figures["relative_uncertainty"].strip() == "1.0%"
    assert "gradient_norm" not in figures
