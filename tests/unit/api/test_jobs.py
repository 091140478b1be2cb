"""A job as a program gives it: a file, a dict, values over both."""

import doctest
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.api import jobs
from autotune.api.jobs import definition_of, pinned
from autotune.job.yaml_file import to_yaml
from autotune.space.job_file.load import load_job as load_file

FIELDS = {
    "model": "qwen2.5-0.5b",
    "dataset": {"lengths": {"max": 64, "p50": 32}},
    "global_batch_size": 8,
    "max_length": 64,
}


def test_the_examples_of_its_documentation_are_true() -> None:
    outcome = doctest.testmod(jobs, verbose=False)
    assert outcome.attempted > 1 and outcome.failed == 0


def test_a_dict_a_file_and_flags_make_the_same_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(FIELDS), encoding="utf-8")
    values = {"learning_rate": 1e-4, "devices.memory": "2GiB", "optim": "adamw_torch"}
    by_flags, definition = load_file(file, [f"{name}={value}" for name, value in values.items()])
    assert autotune.load_job(FIELDS, set=values) == by_flags
    assert autotune.load_job(str(file), values) == autotune.load_job(file, values) == by_flags
    assert definition_of(by_flags) == definition


class Kernel(Enum):
    SDPA = "sdpa"


def test_numbers_of_numpy_and_enums_are_values_and_other_things_are_refused() -> None:
    job = autotune.load_job(FIELDS, set={"learning_rate": np.float64(1e-4)})
    assert job == autotune.load_job(FIELDS, set={"learning_rate": 1e-4})
    knobs = {"per_device_train_batch_size": np.int64(2), "gradient_checkpointing": np.bool_(True)}
    known = pinned(job, {**knobs, "attn_implementation": Kernel.SDPA}).fixed
    assert known == {
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
        "attn_implementation": "sdpa",
    }
    with pytest.raises(autotune.UserError, match="this is of type object") as error:
        autotune.load_job(FIELDS, set={"learning_rate": object()})
    assert error.value.problems[0].where == "learning_rate"


def test_paths_of_a_dict_are_relative_to_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = {**FIELDS, "model": Path("m"), "dataset": "d"}
    job = autotune.load_job(given)
    assert (job.model, job.dataset) == (str(folder / "m"), str(folder / "d"))
    assert given["model"] == Path("m")


def test_every_problem_is_told_at_once_by_its_field() -> None:
    wrong = {**FIELDS, "global_batch_size": 0, "training": {"learning_rat": 1}, "colour": "red"}
    with pytest.raises(autotune.UserError) as error:
        autotune.load_job(wrong, set={"devices.memory": "much"})
    places = {problem.where for problem in error.value.problems}
    assert {"global_batch_size", "training.learning_rat", "colour", "--set"} <= places


def test_a_file_of_another_tool_is_read_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "axolotl.yml"
    file.write_text(
        "base_model: qwen2.5-0.5b\nsequence_len: 64\nmicro_batch_size: 2\n"
        f"gradient_accumulation_steps: 4\ndatasets: [{{path: {tmp_path}, type: completion}}]\n",
        encoding="utf-8",
    )
    job = autotune.load_job(file)
    assert job.global_batch_size == 8
    assert "read as a configuration of Axolotl" in capsys.readouterr().err


def test_knobs_are_pinned_in_place_of_what_the_job_leaves_open() -> None:
    job = autotune.load_job({**FIELDS, "recipe": {"dtype": ["float32", "bfloat16"]}})
    found = pinned(job, {"dtype": "bfloat16", "per_device_train_batch_size": 2})
    assert found.fixed == {"dtype": "bfloat16", "per_device_train_batch_size": 2}
    assert found.recipe == {}
    with pytest.raises(autotune.UserError, match="per_device_batch"):
        pinned(job, {"per_device_batch": 2})
