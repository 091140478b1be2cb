"""`autotune init`: four questions, a commented job that is valid, and what comes next."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotune.cli import main
from autotune.job.methods import METHODS
from autotune.space.job_file.load import load_job
from autotune.space.job_file.new_job import TUNINGS


@pytest.fixture(autouse=True)
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: str, answers: str = "") -> Result:
    return CliRunner().invoke(main, ["init", *arguments], input=answers)


def flags(model: str = "qwen2.5-7b", dataset: str = "", method: str = "sft", tuning: str = "lora"):
    return [f"--model={model}", f"--dataset={dataset}", f"--method={method}", f"--tuning={tuning}"]


def test_four_questions_make_a_valid_job_and_the_next_command_is_named() -> None:
    result = init(answers="Qwen2.5-7B\norg/rows\n\nqlora\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "Wrote job.yaml.\n"
        "Next: `autotune plan job.yaml --device h200` says what to use on such a GPU;\n"
        "`autotune run job.yaml` on the training machine measures and verifies it.\n"
    )
    job, _ = load_job(Path("job.yaml"))
    assert (job.model, job.dataset) == ("Qwen/Qwen2.5-7B", "org/rows")
    assert (job.method, job.tuning) == ("sft", "qlora")
    validated = CliRunner().invoke(main, ["validate", "job.yaml"])
    assert validated.exit_code == 0, validated.stderr


def test_flags_answer_in_place_of_questions() -> None:
    result = init(*flags())
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("dataset", ["", "org/rows"])
def test_the_job_of_every_method_is_valid_and_so_is_what_it_comments_out(
    method: str, tuning: str, dataset: str
) -> None:
    assert init(*flags(dataset=dataset, method=method, tuning=tuning)).exit_code == 0
    file = Path("job.yaml")
    job, _ = load_job(file)
    assert (job.method, job.tuning) == (method, tuning)
    text = file.read_text()
    assert max(map(len, text.splitlines())) <= 100
    optional = "columns|recipe|fixed|reward_model_path|  dtype|  lora_r"
    file.write_text(re.sub(rf"(?m)^# ((?:{optional}):)", r"\1", text))
    everything, _ = load_job(file)
    assert sorted(everything.recipe["dtype"]) == ["bfloat16", "float32"]
    assert bool(everything.columns) == bool(dataset)


def test_paths_are_the_shell_s_and_are_written_as_the_file_has_to_name_them() -> None:
    Path("rows.jsonl").touch()
    assert init("jobs/mine.yaml", *flags(dataset="rows.jsonl")).exit_code == 0
    assert "dataset: ../rows.jsonl" in Path("jobs/mine.yaml").read_text()
    assert load_job(Path("jobs/mine.yaml"))[0].dataset == str(Path.cwd() / "jobs/../rows.jsonl")


def test_nothing_is_overwritten() -> None:
    Path("job.yaml").write_text("mine")
    result = init(*flags())
    assert (result.exit_code, Path("job.yaml").read_text()) == (2, "mine")
    assert result.stderr == (
        "error: job.yaml: the file exists already\n  hint: name another, or move it\n"
    )


def test_what_is_not_there_is_refused_and_no_file_is_left() -> None:
    result = init(*flags(model="./nope", dataset="nope.jsonl"))
    assert result.exit_code == 2
    assert f"`model`: there is no {Path.cwd()}/nope" in result.stderr
    assert f"`dataset`: there is no {Path.cwd()}/nope.jsonl" in result.stderr
    assert not Path("job.yaml").exists()


def test_a_question_that_nobody_answers_names_its_flag() -> None:
    result = init("--model=phi-4")
    assert result.exit_code == 2
    assert result.stderr.endswith("error: dataset: an answer is missing\n  hint: give --dataset\n")
