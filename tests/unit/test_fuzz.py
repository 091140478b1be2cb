"""Files of a user that are damaged at random: words, never a traceback, a hang or a wrong code.

Run folders: `run/test_damaged_runs.py`; models, data, replies: `test_fuzz_readers.py`.
`scripts/nightly` does all for longer.
"""

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.unit.calling import call
from tests.unit.past_run import write_job
from tests.unit.run.damage import damage

ROOT = Path(__file__).parents[2]
EXECUTIONS = int(os.environ.get("AUTOTUNE_FUZZ", "50"))
MOST_S = 20
"""Of one execution."""


class Hangs(BaseException):
    """An execution that does not end; no handler of errors takes it."""


@contextlib.contextmanager
def in_time(said: str) -> Iterator[None]:
    """Within this block what takes too long is ended."""

    def ring(*_: object) -> None:
        raise Hangs(said)

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(MOST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_answered(
    files: dict[str, str], folder: Path, command: list[str], codes: set[int]
) -> None:
    """Damage one of the files, again and again, and see what the command makes of it."""
    rng, faults = random.Random(7), []
    for number in range(EXECUTIONS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        name = rng.choice([name for name in files if name.endswith((".yaml", ".json", ".sh"))])
        said = f"{number}: {name} {damage(folder / name, rng)}"
        with in_time(said):
            result = call(*command)
        if result.exit_code not in codes or "Traceback" in result.stderr:
            faults.append(f"{said}: {result.exit_code} {result.stderr.strip().splitlines()[-2:]}")
    assert not faults, f"{len(faults)} of {EXECUTIONS}:\n" + "\n".join(faults)


RICH = {
    "method": "sft",
    "tuning": "lora",
    "max_length": 512,
    "budget": {"probes": 12, "minutes": 3, "total": "30m"},
    "devices": {"kind": "cuda", "count": 2, "memory": "20GiB", "host_memory": "64GiB"},
    "columns": {"prompt": "instruction", "completion": "output"},
    "headroom": 0.1,
    "recipe": {"max_length": [256, 512], "lora_r": [8, 16]},
    "seed": 3,
}


def test_a_job_that_is_damaged_is_answered_in_words(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    text = write_job(tmp_path / "whole", **RICH).read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    data.update(model=str(tmp_path / "whole" / "m"), dataset=str(tmp_path / "whole" / "d"))
    folder = tmp_path / "damaged"
    files = {"job.yaml": yaml.safe_dump(data)}
    assert_answered(files, folder, ["validate", str(folder / "job.yaml")], {0, 2})


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("case", ["zero3", "fsdp2"])
def test_the_files_of_a_launch_that_are_damaged_are_answered_in_words(
    tmp_path: Path, case: str
) -> None:
    folder = tmp_path / "bundle"
    recorded = (ROOT / "tests" / "golden" / "recorded" / case).iterdir()
    files = {path.name: path.read_text(encoding="utf-8") for path in recorded}
    assert_answered(files, folder, ["check", str(folder)], {0, 1, 2})
