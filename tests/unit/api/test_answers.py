"""Answers as a program has them. The estimates and measurements are made up, the rest is real."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.api.planning import PlannedAnswer
from autotune.api.tuning import MeasuredAnswer
from autotune.report.html import answer_html
from autotune.report.sections import Table
from autotune.run.past_run import reopen
from autotune.run.session import Result
from autotune.run.verdict import Verification
from tests.unit.builders import GIB, make_estimate, make_job
from tests.unit.cli.views.test_answer import estimated, made, text_of
from tests.unit.past_run import make_run


def planned(estimate_of=estimated) -> PlannedAnswer:
    job = make_job(global_batch_size=8)
    return PlannedAnswer(job=job, plan=made(estimate_of, job))


def measured(folder: Path, **fields: object) -> MeasuredAnswer:
    run = make_run(folder)
    past = reopen(run.path)
    verification = Verification(verified=True, reason="it trained", log=None)
    result = Result(
        outcome="recommended",
        records=past.records,
        stop_reason="all was tried",
        space_size=len(past.space.candidates),
        space=past.space,
        recommendation=past.recommendation(),
        verification=verification,
    )
    return MeasuredAnswer(folder=run.path, result=replace(result, **fields))


def test_a_plan_answers_with_the_sentence_of_the_command_and_its_figures() -> None:
    answer = planned()
    best = answer.plan.answer.choice
    shown = " ".join(text_of(answer.plan).split())
    assert shown.startswith(answer.text) and answer.text.startswith("Use 4 x 2 without")
    assert all(line in shown for line in answer.lines) and str(answer) == "\n".join(answer.lines)
    assert answer.fits and answer.safe and not answer.stopped
    assert answer.knobs == best.candidate.knobs
    assert answer.tokens_per_s == 36000.0 and answer.peak_memory_bytes == 16 * GIB


def test_a_frame_has_a_row_for_each_choice_or_each_candidate() -> None:
    answer = planned()
    frame = answer.to_frame()
    assert len(frame) == len(answer.plan.choices) == 8
    assert frame["candidates"].sum() == len(answer.plan.space.candidates)
    first = frame.iloc[0]
    assert first["per_device_train_batch_size"] == 4 and first["tokens_per_s"] == 36000.0
    assert first["peak_memory_bytes"] == 16 * GIB and bool(first["safe"])
    every = answer.to_frame(all=True)
    assert len(every) == len(answer.plan.space.candidates)
    assert "candidates" not in every and set(every) < set(frame)


def test_where_nothing_fits_it_says_so_and_nothing_is_raised_until_it_is_to_be_used(
    tmp_path: Path,
) -> None:
    def too_large(candidate):
        estimate = make_estimate(30 * candidate.micro_batch * GIB, 1.0)
        return replace(estimate, fits=False, p_oom=1.0, missing_bytes=6 * GIB)

    answer = planned(too_large)
    assert not answer.fits and not answer.safe
    assert (answer.knobs, answer.tokens_per_s, answer.peak_memory_bytes) == (None, None, None)
    assert answer.text.startswith("Nothing fits in 24 GiB") and len(answer.lines) > 1
    assert not answer.to_frame()["fits"].any()
    for use in (answer.training_arguments, answer.peft_config, lambda: answer.environment):
        with pytest.raises(autotune.UserError, match="Nothing fits"):
            use()
    with pytest.raises(autotune.UserError, match="nothing fits"):
        answer.write_bundle(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_notebook_shows_the_sentences_and_the_table() -> None:
    answer = planned()
    html = answer._repr_html_()
    assert html.startswith('<div style="white-space: pre-wrap"><b>Use 4 x 2 without')
    assert html.count("<tr>") == 1 + len(answer.plan.choices)
    assert '<td style="text-align: right">36k</td>' in html


def test_what_a_notebook_shows_is_escaped() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    table = Table(caption="", heads=(evil, f"{evil}#"), rows=((evil, evil),))
    html = answer_html([evil, evil], table, [evil])
    assert "<script" not in html and "\x1b" not in html
    assert html.count("&lt;script&gt;") == 7


def test_a_plans_bundle_is_written_where_nothing_is(tmp_path: Path) -> None:
    answer = planned()
    folder = answer.write_bundle(tmp_path / "mine")
    assert (folder / "launch.sh").is_file() and (folder / "sft_config.yaml").is_file()
    with pytest.raises(autotune.UserError, match="not empty"):
        answer.write_bundle(folder)


def test_a_run_answers_with_what_was_measured(tmp_path: Path) -> None:
    answer = measured(tmp_path)
    assert answer.text.startswith("Use ") and "200 tokens/s (measured" in answer.text
    assert answer.fits and answer.safe and answer.outcome == "recommended"
    assert (answer.tokens_per_s, answer.peak_memory_bytes) == (200.0, 3 * GIB)
    assert answer.bundle == answer.folder / "bundle"
    best, second = answer.to_frame()["tokens_per_s"]
    assert (best, second) == (200.0, 100.0)
    probes = answer.to_frame(all=True)
    assert list(probes["outcome"]) == ["ok", "ok", "oom", "crash", "ok", "interrupted"]
    assert "200" in answer._repr_html_() and "Found" not in answer.text
    assert answer.report_html().startswith("<!doctype html>")
    written = answer.write_bundle(tmp_path / "mine")
    assert "max_length" in (written / "sft_config.yaml").read_text(encoding="utf-8")
    shutil.rmtree(answer.folder)
    assert answer.text in answer._repr_html_()


def test_a_run_that_was_interrupted_names_how_to_go_on(tmp_path: Path) -> None:
    answer = measured(tmp_path, outcome="interrupted", verification=None)
    assert answer.bundle is None and not answer.safe and answer.tokens_per_s == 200.0
    assert answer.lines[-1] == f"interrupted; go on with: autotune run --resume {answer.folder}"
    early = replace(answer.result, records=(), recommendation=None, space=None)
    nothing = replace(answer, result=early)
    assert nothing.text == "no stable candidate has been measured yet"
    assert "<table>" not in nothing._repr_html_()
