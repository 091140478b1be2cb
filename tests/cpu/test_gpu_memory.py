"""`scripts/gpu.sh memory --rehearse`: the measurement as it will run on a GPU, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly("rehearsals")

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu.sh"
FIGURES = {
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_memory_bytes",
    "p_oom",
    "parts",
    "step_time_s",
    "tokens_per_s",
    "method",
}
MEASURED = {
    "outcome",
    "allocated_peak_bytes",
    "reserved_peak_bytes",
    "peak_memory_bytes",
    "allocator_retries",
    "step_time_s",
    "tokens_per_s",
    "missing_bytes",
    "seconds",
}


def memory(*arguments: object, expect: int = 0) -> str:
    done = subprocess.run(
        ["bash", str(SCRIPT), "memory", *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if expect == 0 else done.stderr


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_rehearsal_goes_on_where_it_stopped_and_ends_with_a_table(nasty_out: Path) -> None:
    assert "3 candidates are left" in memory(nasty_out, "--rehearse", "--minutes", 0)
    about, *predicted = lines_of(nasty_out / "memory_predictions.jsonl")
    assert about["about"]["versions"]["torch"] and len(predicted) == 3
    assert all(row["estimate"].keys() >= FIGURES for row in predicted)

    said = memory(nasty_out, "--rehearse")
    rows = lines_of(nasty_out / "memory_rows.jsonl")
    probes = [row for row in rows if "measurement" in row]
    assert [row["knobs"] for row in probes] == [row["knobs"] for row in predicted]
    assert all(row["measurement"].keys() >= MEASURED for row in probes)
    assert [row["measurement"]["outcome"] for row in probes] == ["ok"] * 3
    assert len([row for row in rows if "about" in row]) == 2
    table = (nasty_out / "memory_table.md").read_text(encoding="utf-8")
    assert table in said
    assert "| all | 3 |" in table and "0 of 3 wrong" in table
    assert "| tiny-lora-32 | 3 |" in table.partition("## Ranks")[2]

    memory(nasty_out, "--rehearse")
    assert lines_of(nasty_out / "memory_rows.jsonl") == rows


def test_what_cannot_be_is_refused_in_plain_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"about": 1}\n', encoding="utf-8")
    assert "no predictions of memory" in memory(tmp_path, "--predictions", broken, expect=2)
    assert "cannot read" in memory(tmp_path, "--predictions", tmp_path / "no", expect=2)
    assert "did you mean `h200`?" in memory(tmp_path / "x", "--predict", "h2000", expect=2)
    assert "this machine has no NVIDIA GPU" in memory(tmp_path, expect=3)


@pytest.fixture
def nasty_out(tmp_path: Path) -> Path:
    return tmp_path / "a'; echo ü 0"
