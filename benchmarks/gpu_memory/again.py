"""What today's code estimates of candidates that a GPU has measured.

    python -m benchmarks.gpu_memory.again FOLDER --predictions FILE --device h200

FOLDER holds the `memory_rows.jsonl` of `scripts/gpu.sh memory`. Writes `estimated_again.jsonl`, or
where `--results` says: a header and a row for each candidate that trained to its end. Prints
them as a table. Estimates depend on the versions of torch and transformers: run it with those of
the measurement (`scripts/virtual_gpu` can have them). `--ceilings`: rates that were measured on the
device; without, the tabled ones.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.estimate.speed.ceilings import Ceilings
from autotune.plain_data import from_plain
from autotune.plan.cache import PlanCache
from autotune.plan.estimator import Estimator
from autotune.space.knobs import from_knobs
from benchmarks.gpu_memory.predictions import (
    estimator_of,
    opened,
    read,
    read_rows,
    serving,
    told,
)

Row = dict[str, Any]
TRAINED = ("ok", "unstable")
ALLOCATED = ("peak_allocated_bytes", "peak_allocated_bytes", "allocated_peak_bytes")
RESERVED = ("peak_reserved_bytes", "peak_reserved_bytes", "reserved_peak_bytes")
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate again what a GPU has measured.")
    parser.add_argument("folder", type=Path, help="with memory_rows.jsonl")
    parser.add_argument("--predictions", type=Path, required=True, help="that were measured")
    parser.add_argument("--device", required=True, help="kind of GPU that measured")
    parser.add_argument("--ceilings", type=Path, help="rates that were measured there")
    parser.add_argument("--only", default="", help="a part of the names of the wanted jobs")
    parser.add_argument("--results", type=Path, help="file to write")
    arguments = parser.parse_args()
    jobs = read(arguments.predictions).about
    rows = [
        row for row in read_rows(arguments.folder / "memory_rows.jsonl") if "measurement" in row
    ]
    rows = [row for row in rows if row["measurement"]["outcome"] in TRAINED]
    rows = [row for row in rows if arguments.only in row["case"]]
    command = shlex.join(["python", "-m", "benchmarks.gpu_memory.again", *sys.argv[1:]])
    again: list[Row] = [{"about": {**told(), "command": command, "device": arguments.device}}]
    ceilings = None
    if arguments.ceilings is not None:
        ceilings = from_plain(Ceilings, json.loads(arguments.ceilings.read_text(encoding="utf-8")))
    print("allocated GiB predicted, again, measured; reserved; seconds of a step; job")
    with tempfile.TemporaryDirectory(prefix="autotune-again-") as scratch:
        cache = PlanCache(path=Path(os.environ.get("AUTOTUNE_CACHE") or f"{scratch}/cache"))
        with serving(Path(scratch)) as server:
            for case in dict.fromkeys(row["case"] for row in rows):
                entry = jobs["jobs"][case]
                folder = Path(scratch) / case
                job, _ = opened(folder, jobs["models"][entry["model"]], entry["job"])
                estimator = estimator_of(job, arguments.device, folder, cache, server, ceilings)
                again += estimated(estimator, [row for row in rows if row["case"] == case])
    lines = [json.dumps(row, sort_keys=True) for row in again]
    (arguments.results or arguments.folder / "estimated_again.jsonl").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )


def estimated(estimator: Estimator, rows: list[Row]) -> list[Row]:
    """The estimates of a job's measured candidates; printed, too."""
    candidates = [from_knobs(row["knobs"]) for row in rows]
    estimates = estimator.estimates(candidates)
    found = []
    for row, candidate in zip(rows, candidates, strict=True):
        estimate = estimates[candidate.key].plain()
        found.append({"case": row["case"], "knobs": row["knobs"], "estimate": estimate})
        sources = (row["estimate"], estimate, row["measurement"])
        figures = [
            *(f"{figure[name] / GIB:.2f}" for figure, name in zip(sources, ALLOCATED, strict=True)),
            *(f"{figure[name] / GIB:.2f}" for figure, name in zip(sources, RESERVED, strict=True)),
            *(f"{figure['step_time_s']:.2f}" for figure in sources),
        ]
        print("  ".join(f"{figure:>6}" for figure in figures), row["case"], flush=True)
    return found


if __name__ == "__main__":
    main()
