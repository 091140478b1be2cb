"""Loading a job file of a test, or the problems of it."""

from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.job.job import Job
from autotune.space.job_file.load import load_job


def load(folder: Path, text: str, *sets: str) -> Job:
    """The job whose file starts with a model and data on two lines."""
    file = folder / "job.yaml"
    file.write_text("model: ./m\ndataset: ./d\n" + text, encoding="utf-8")
    return load_job(file, sets)[0]


def problems(folder: Path, text: str, *sets: str) -> list[tuple[str, str, str]]:
    """(where, what, hint) of all that is wrong; the job file is called `job`."""
    with pytest.raises(UserError) as caught:
        load(folder, text, *sets)
    assert caught.value.exit_code == 2
    name = f"{folder / 'job.yaml'}"
    return [
        (problem.where.replace(name, "job"), problem.what, problem.hint or "")
        for problem in caught.value.problems
    ]
