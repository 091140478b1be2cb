"""Where what a job names lies: paths of files and flags, and well-known models."""

from pathlib import Path

import pytest

from autotune.space.job_file.load import load_job


def test_what_a_flag_names_is_relative_to_the_shell_and_what_a_file_names_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, file = tmp_path / "shell", tmp_path / "jobs" / "job.yaml"
    shell.mkdir()
    file.parent.mkdir()
    for folder in (shell, file.parent):
        (folder / "rows.jsonl").touch()
    text = "model: org/name\ndataset: rows.jsonl\n"
    file.write_text(text + "training: {output_dir: out}\n")
    monkeypatch.chdir(shell)
    paths = load_job(file)[0]
    assert paths.dataset == str(file.parent / "rows.jsonl")
    assert paths.training == {"output_dir": str(file.parent / "out")}
    sets = ["dataset=rows.jsonl", "output_dir=out"]
    paths = load_job(file, sets)[0]
    assert paths.dataset == str(shell / "rows.jsonl")
    assert paths.training == {"output_dir": str(shell / "out")}


@pytest.mark.parametrize("name", ["qwen2.5-7b", "QWEN2.5-7B", "qwen/qwen2.5-7b"])
def test_a_well_known_model_is_its_hub_id(name: str) -> None:
    job, _ = load_job(None, [f"model={name}", "dataset=org/rows"])
    assert job.model == "Qwen/Qwen2.5-7B"


def test_a_model_that_rewards_may_be_a_well_known_one() -> None:
    sets = ["method=rloo", "model=qwen2.5-7b", "dataset=org/rows", "reward_model_path=qwen2.5-0.5b"]
    assert load_job(None, sets)[0].reward_model_path == "Qwen/Qwen2.5-0.5B"
