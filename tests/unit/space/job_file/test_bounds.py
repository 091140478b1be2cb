"""Job files and values that no real job has are refused at once, with the bound."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.cli import main
from autotune.errors import UserError
from autotune.job.text_file import MOST_BYTES
from autotune.space.job_file.load import load_job
from tests.unit.loading import load, problems

GRPO = "method: grpo\nreward_funcs: [get_soft_overlong_punishment]\n"


def refused(file: Path) -> tuple[str, str]:
    with pytest.raises(UserError) as caught:
        load_job(file)
    assert caught.value.exit_code == 2
    (problem,) = caught.value.problems
    return problem.what, problem.hint or ""


def test_a_job_file_that_is_not_there_is_named(tmp_path):
    file = tmp_path / "nope.yaml"
    what = "cannot read the job file: there is no such file"
    assert refused(file) == (what, "`autotune init` writes a job")


def test_a_pipe_a_device_and_a_folder_are_no_job_files(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for file, kind in ((pipe, "a pipe or a device"), (Path("/dev/zero"), "a pipe or a device")):
        assert refused(file)[0] == f"is {kind}, not a job file"
    assert refused(tmp_path)[0] == "is a folder, not a job file"


def test_a_job_file_has_a_largest_size(tmp_path):
    file = tmp_path / "job.yaml"
    text = "model: org/name\ndataset: org/rows\n"
    file.write_text(text + "#" * (MOST_BYTES - len(text)), encoding="utf-8")
    assert load_job(file)[0].model == "org/name"
    file.write_text(text + "#" * MOST_BYTES, encoding="utf-8")
    assert refused(file)[0] == "a job file has at most 1 MiB, but this is larger"


def test_a_file_in_another_encoding_is_told_its_line(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_bytes(b"model: m\n# caf\xe9\n")
    with pytest.raises(
        UserError, match="job.yaml:2: .* is not UTF-8 text\n  hint: save it as UTF-8"
    ):
        load_job(file)


@pytest.mark.parametrize(
    ("flag", "bound"),
    [
        ("global_batch_size=100000000000000000000000", "1,000,000 rows"),
        ("global_batch_size=1000000001 tokens", "1,000,000,000 tokens"),
        ("max_length=100000001", "100,000,000"),
        ("dataset={lengths: {max: 100000001}}", "100,000,000"),
        ("dataset={lengths: {max: 9, p50: 100000001}}", "100,000,000"),
        ("dataset={lengths: {max: 9, rows: 1000000000001}}", "1,000,000,000,000"),
        ("devices.count=4097", "4,096"),
        ("devices.nodes=100001", "100,000"),
        ("devices.memory=513TiB", "512 TiB"),
        ("budget=1000001", "1,000,000"),
        ("budget=1000001m", "1,000,000"),
        ("budget.minutes=1e300", "1,000,000"),
        ("budget.probe_minutes=1e300", "1,000,000"),
        ("budget.total=1000001m", "1,000,000 minutes"),
        ("gradient_accumulation_steps=99999999999999999999", "1,000,000"),
        ("per_device_train_batch_size=99999999999999999999", "1,000,000"),
        ("recipe={max_length: [100000001]}", "100,000,000"),
    ],
)
def test_what_no_real_job_has_is_refused_with_the_bound(folder, flag, bound):
    ((where, what, _),) = problems(folder, "", flag)
    assert where == "--set"
    assert f"at most {bound}" in what


def test_completions_generated_together_have_a_bound(folder):
    ((_, what, _),) = problems(folder, GRPO, "generation_batch_size=99999999999")
    assert what == "`generation_batch_size` must be at most 1,000,000"


def test_a_recipe_lists_so_many_values(folder):
    values = ", ".join(map(str, range(1, 66)))
    ((_, what, _),) = problems(folder, f"recipe: {{max_length: [{values}]}}\n")
    assert what == "`recipe`: `max_length` lists 65 values, but at most 64 can be"


@pytest.mark.parametrize(
    "flags",
    [
        ["global_batch_size=1000000"],
        ["global_batch_size=999983"],
        ["global_batch_size=1000000000 tokens", "max_length=1"],
        ["max_length=100000000"],
        ["dataset={lengths: {max: 100000000, rows: 1000000000000}}"],
        ["devices.count=4096", "global_batch_size=4096"],
        ["devices.nodes=100000", "devices.count=10", "global_batch_size=1000000"],
        ["devices.memory=512TiB", "budget=1000000"],
        ["budget.minutes=1000000", "budget.total=1000000m"],
    ],
)
def test_what_is_within_is_answered_at_once(folder, flags):
    load(folder, "", *flags)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "error: --model: a model is needed\n  hint: give a hub id, "),
        (" ", "error: --model: a model is needed\n"),
        ("./nope", "error: `model`: there is no /"),
    ],
)
def test_init_names_no_line_of_a_file_that_it_did_not_write(tmp_path, monkeypatch, model, message):
    monkeypatch.chdir(tmp_path)
    flags = ["--dataset=", "--method=sft", "--tuning=lora", f"--model={model}"]
    result = CliRunner().invoke(main, ["init", *flags])
    assert (result.exit_code, Path("job.yaml").exists()) == (2, False)
    assert result.stderr.startswith(message)
