"""A program on what `import autotune` gives, read by a type checker (`test_distribution.py`)."""

from pathlib import Path
from typing import assert_type

import autotune


class Counting(autotune.Listener):
    """Counts what was measured."""

    probes = 0

    def starting_anew(self, reason: str) -> None:
        """Nothing is measured yet."""
        self.probes = 0


def best(file: Path) -> autotune.Answer:
    """The answer of a run where that holds, else that of a plan."""
    job = autotune.load_job(file, set={"devices.memory": "20GiB", "learning_rate": 1e-4})
    assert_type(job, autotune.Job)
    assert_type(job.global_batch_size, int | str)
    planned, found = autotune.plan(job, device="h200"), autotune.tune(job, listener=Counting())
    assert_type(planned.text, str)
    assert_type(planned.tokens_per_s, float | None)
    assert_type(found.peak_memory_bytes, int | None)
    assert_type(found.bundle, Path | None)
    assert_type(found.report_html(), str)
    measurement: autotune.Measurement = autotune.probe(job, planned.knobs)
    assert_type(measurement.outcome, str)
    return found if found.safe else planned


def wrong(file: Path) -> None:
    """What a checker has to refuse: an ignore that nothing needs is an error."""
    autotune.plan(file)  # type: ignore[arg-type]
    autotune.tune(autotune.load_job(file), verify="no")  # type: ignore[arg-type]
    autotune.load_job(3)  # type: ignore[arg-type]
    autotune.nothing  # type: ignore[attr-defined]  # noqa: B018


def refusals(file: Path) -> list[str]:
    """Every problem of a job."""
    try:
        autotune.load_job(file)
    except autotune.UserError as error:
        return [problem.render() for problem in error.problems]
    return []
