"""The command line: help, `validate`, and what is refused before a run starts."""

import json
import subprocess
import sys

import pytest
import yaml

from autotune.cli.job_options import names_model
from tests.unit.calling import call, refused
from tests.unit.past_run import write_job

HEAVY = ("torch", "transformers", "trl", "pydantic", "optuna", "rich", "datasets", "numpy", "yaml")
WITHOUT_HEAVY = f"""
import sys
from pathlib import Path
from autotune.cli import main
try:
    main(["--help"], prog_name="autotune")
except SystemExit as end:
    assert end.code == 0, end.code
print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
COMMANDS = [
    *("init", "import"),
    *("run", "plan", "limits", "advise", "probe", "verify", "emit", "check", "report"),
    *("validate", "serve", "worker", "doctor"),
]


def test_help_lists_the_commands_in_this_order():
    page = call("--help").stdout
    _, _, listed = page.partition("Commands:\n")
    names = [
        line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    assert names == COMMANDS
    assert "Exit codes: 0 done, 1 nothing fits or a verification failed, 2 the job file" in page


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_of_help(command):
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: autotune {command} ")


@pytest.mark.parametrize("streams", ["<&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_empty_ones(tmp_path, streams):
    """No file or pipe of ours takes their place."""
    write_job(tmp_path)
    for command, code in (("init new.yaml", 2), ("validate job.yaml", 0), ("init job.yaml", 2)):
        ends = [
            subprocess.run(
                ["bash", "-c", f'exec "$0" -m autotune {command} {how}', sys.executable],
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            for how in ("</dev/null", streams)
        ]
        open_, closed = ends
        assert (open_.returncode, closed.returncode) == (code, code)
        assert closed.stdout in ("", open_.stdout) and closed.stderr in ("", open_.stderr)


def test_help_loads_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEAVY], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("Usage: autotune [OPTIONS] COMMAND [ARGS]...")
    assert (done.stderr.strip(), done.returncode) == ("[]", 0)


def test_an_unknown_command_is_answered_with_the_nearest():
    assert "did you mean `validate`?" in refused("valdate")
    assert "choose from" in refused("xyzzy")


def test_a_good_job_is_printed_resolved(tmp_path):
    result = call("validate", write_job(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")
    job = yaml.safe_load(result.stdout)
    assert job["model"] == str(tmp_path / "m")
    assert job["dataset"] == str(tmp_path / "d")
    assert (job["global_batch_size"], job["tuning"], job["headroom"]) == (8, "full", 0.1)


@pytest.mark.parametrize(
    "name", ["1e-4", "1.5e3", "no", "010", "1:30", "null", "2024-01-01", "ü 日本"]
)
def test_a_resolved_job_is_a_job_and_resolves_to_itself(name, tmp_path):
    training = {"run_name": name, "learning_rate": 1e-4}
    recipe = {"max_length": [512, None]}
    first = call("validate", write_job(tmp_path, training=training, recipe=recipe))
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(first.stdout, encoding="utf-8")
    second = call("validate", resolved)
    assert (second.exit_code, second.stdout) == (0, first.stdout)
    job = json.loads(call("validate", resolved, "--json").stdout)["job"]
    assert job["training"] == training
    assert job["recipe"] == recipe


def test_validate_prints_one_json_object(nasty_dir):
    result = call("validate", write_job(nasty_dir), "--json")
    plain = json.loads(result.stdout)
    assert plain.keys() == {"schema", "valid", "job"}
    assert (plain["schema"], plain["valid"]) == (1, True)
    assert plain["job"]["model"] == str(nasty_dir / "m")
    assert len(result.stdout.splitlines()) == 1


def test_every_problem_of_a_bad_job_is_told_at_once(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("modle: ./m\ndataset: ./nowhere\nheadroom: 2\nfixed: {lora_r: 4}\n")
    stderr = refused("validate", file, "--set", "learning_rat=1")
    problems = [line for line in stderr.splitlines() if not line.startswith("  hint: ")]
    assert all(line.startswith("error: ") for line in problems)
    for part in ("job.yaml:1: unknown field `modle`", "job.yaml:3: ", "`model` is missing"):
        assert part in stderr
    for part in ("there is no", "`lora_r` needs `tuning: lora`", "called `learning_rat`"):
        assert part in stderr
    assert "  hint: did you mean `learning_rate`?" in stderr.splitlines()


@pytest.mark.parametrize("text", ["", "- 1\n", "model: [\n", "model: x\nmodel: y\n", "\x00", "42"])
def test_what_is_no_job_at_all_is_refused_in_words(text, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert refused("validate", file).startswith("error: ")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "cannot read the job file" in refused("validate", tmp_path / "none.yaml")
    assert "is a folder, not a job file" in refused("validate", tmp_path)


@pytest.mark.parametrize("command", ["run", "probe", "validate", "validate --space"])
def test_neither_a_job_nor_flags_is_refused(command):
    stderr = refused(*command.split())
    assert stderr.splitlines() == [
        "error: a job is needed",
        "  hint: name a model (`qwen2.5-7b`), or a job file (job.yaml)",
    ]


def test_a_job_can_be_given_wholly_by_flags(nasty_dir, monkeypatch):
    write_job(nasty_dir)
    monkeypatch.chdir(nasty_dir)
    flags = ["--model", "./m", "--dataset", "./d", "--global-batch-size", "4", "--budget", "5m"]
    flags += ["--tuning", "lora", "--max-length", "256", "--set", "lora_r=4"]
    job = json.loads(call("validate", *flags, "--json").stdout)["job"]
    assert (job["model"], job["dataset"]) == (str(nasty_dir / "m"), str(nasty_dir / "d"))
    assert (job["global_batch_size"], job["max_length"], job["tuning"]) == (4, 256, "lora")
    assert job["budget"]["minutes"] == 5.0
    assert job["fixed"] == {"lora_r": 4}


def test_flags_win_over_the_file(tmp_path):
    file = write_job(tmp_path)
    arguments = ["--set", "learning_rate=3e-5", "--set", "devices.index=1", "--budget", "7"]
    job = json.loads(call("validate", file, *arguments, "--json").stdout)["job"]
    assert job["training"]["learning_rate"] == 3e-5
    assert job["devices"]["index"] == 1
    assert job["budget"]["probes"] == 7


@pytest.mark.parametrize(
    ("text", "is_model"),
    [
        ("qwen2.5-7b", True),
        ("Qwen/Qwen2.5-7B", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("model", True),
        ("model/config.json", True),
        ("empty", False),
        (".", False),
        ("../model", False),
        ("~/model", False),
        ("/nowhere/model", False),
        ("job.yml", False),
        ("missing.yaml", False),
        ("jobs/missing.toml", False),
        ("missing/config.json", False),
        ("other/config.json", False),
        ("Makefile", False),
    ],
)
def test_a_model_may_stand_in_the_place_of_a_job(text, is_model, nasty_dir, monkeypatch):
    monkeypatch.chdir(nasty_dir)
    for name in ("model", "empty", "other"):
        (nasty_dir / name).mkdir()
    (nasty_dir / "model" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (nasty_dir / "other" / "config.json").write_text('{"train_batch_size": 8}', encoding="utf-8")
    (nasty_dir / "Makefile").write_text("all:\n", encoding="utf-8")
    assert names_model(text) is is_model


def test_a_model_in_the_place_of_a_job_is_the_flag(nasty_dir, monkeypatch):
    monkeypatch.chdir(nasty_dir)
    write_job(nasty_dir)
    (nasty_dir / "m" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    by_name = call("validate", "m", "--max-length", "64", "--json")
    by_flag = call("validate", "--model", "m", "--max-length", "64", "--json")
    assert json.loads(by_name.stdout)["job"] == json.loads(by_flag.stdout)["job"]
    assert by_name.stderr.count("assumed: ") == 1 and "10,000 rows of 64 tokens" in by_name.stderr
    assert "two models are named: `m` and `other`" in refused("validate", "m", "--model", "other")
    assert "cannot read the job file" in refused("validate", "jobs/job.yaml")
