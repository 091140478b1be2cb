"""Runs that others have measured on one GPU, each planned by `autotune plan`.

python benchmarks/published_runs/run.py           # goes on where it was stopped
python benchmarks/published_runs/run.py --again   # plans every run anew
python benchmarks/published_runs/run.py --only powerlm
python benchmarks/published_runs/run.py --table   # results.md from results.jsonl again
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import (  # noqa: E402
    Results,
    about_this_run,
    parser_of,
    run_and_tell,
)
from benchmarks.published_runs.models import MODELS  # noqa: E402
from benchmarks.published_runs.settings import DEVICES, Row, job_of, name_of  # noqa: E402
from benchmarks.published_runs.table import table  # noqa: E402

HERE = Path(__file__).parent
RUNS, RESULTS = HERE / "runs.csv", HERE / "results.jsonl"


def published() -> list[Row]:
    """The rows of runs.csv."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs() -> Iterator[tuple[str, Row]]:
    """Each run once, with the first of its rows."""
    found: dict[str, Row] = {}
    for row in published():
        found.setdefault(name_of(row), row)
    yield from found.items()


def planned(row: Row, scratch: Path) -> dict[str, Any]:
    """What `autotune plan --json` says of a run, or why it says nothing."""
    config = scratch / f"{row['model']}.json"
    config.write_text(json.dumps(MODELS[row["model"]]), encoding="utf-8")
    job = job_of(row)
    sets = [f"--set={name}={json.dumps(value)}" for name, value in job.items()]
    device = DEVICES[row["gpu"]]
    command = [sys.executable, "-m", "autotune", "plan", "--json", "--device", device, *sets]
    command.append(f"--model={config}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds = round(time.monotonic() - began, 1)
    if not done.stdout.strip().startswith("{"):
        return {"seconds": seconds, "failure": done.stderr[-1500:]}
    plan = json.loads(done.stdout)
    (candidate,) = plan["candidates"]  # without a job file: what is set, else the defaults
    kept = ("device", "model", "notes")
    return {"seconds": seconds, "job": job, **{n: plan[n] for n in kept}, **candidate}


def run(results: Results, *, again: bool) -> None:
    """Plan what `results` does not hold yet; the newest row of a run counts."""
    known = {row["name"] for row in results.rows() if "failure" not in row}
    about = {**about_this_run(), "command": "python benchmarks/published_runs/run.py"}
    with tempfile.TemporaryDirectory(prefix="published-") as scratch:
        for name, row in runs():
            if not results.asked(name) or (name in known and not again):
                continue
            found = {"name": name, **planned(row, Path(scratch)), "about": about}
            results.add(found)
            print(name, found.get("failure") or f"{found['seconds']} s", flush=True)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--again", action="store_true", help="plan what is there already, too")
    options = parser.parse_args()
    run_and_tell(
        options,
        lambda results: run(results, again=options.again),
        lambda rows: table(published(), {row["name"]: row for row in rows}),
    )


if __name__ == "__main__":
    main()
