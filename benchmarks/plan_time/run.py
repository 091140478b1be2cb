"""How long `autotune plan` takes: cold, again, and until its first answer; wall and processor time.

    python -m benchmarks.plan_time.run [--only NAME]

Each plan is a process of its own with an empty cache, then the same again. Machines differ: a row
says what the import of the stack took just before, so that their times can be compared.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.facts.stack import installed
from benchmarks.command import rows_of
from benchmarks.plan_time.cases import CASES, Case

RESULTS = Path(__file__).parent / "results.jsonl"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Where it is set, every process compiles all of autotune again: users do not have it set."""


def planned(case: Case, cache: str, *flags: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One plan in a process of its own: its seconds with its answer, and all of it."""
    command = [sys.executable, "-m", "autotune", "plan", str(case.job), "--device", case.device]
    command += [*flags, "--json"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "AUTOTUNE_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    environment.pop(NO_BYTECODE, None)
    first_s = None
    with tempfile.TemporaryFile("w+") as out:  # a pipe would fill up while the other one is read
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("so far") and first_s is None:
                first_s = round(time.monotonic() - began, 1)
        process.wait()
        out.seek(0)
        printed = out.read()
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    plan = json.loads(printed)
    answer = plan["answer"]
    figures = {
        "wall_s": round(wall, 1),
        "processor_s": round(processor_s, 1),
        "first_answer_s": first_s,
        "candidates": plan["counts"]["candidates"],
        "exit_code": process.returncode,
        "knobs": None if answer is None else answer["knobs"],
        "tokens_per_s": None if answer is None else answer["tokens_per_s"],
    }
    return figures, plan


def import_s() -> float:
    """Wall seconds that a process takes to import the stack."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import trl.trainer.sft_trainer"], check=True)
    return round(time.monotonic() - began, 1)


def row_of(case: Case) -> dict[str, Any]:
    """A row of the results."""
    import_s()  # so that its files are in memory
    with tempfile.TemporaryDirectory(prefix="plan-time-") as cache:
        row: dict[str, Any] = {
            "name": case.name,
            "device": case.device,
            "most_s": case.most_s,
            "load_before": os.getloadavg()[0],
            "import_s": import_s(),
            "cold": planned(case, cache)[0],
            "again": planned(case, cache)[0],
        }
    row["versions"] = {"python": platform.python_version(), **installed().versions}
    row["utc"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return row


def main() -> None:
    """Run, and add the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a part of the name of a case")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = {row["name"] for row in rows_of(options.results)} if options.results.exists() else set()
    for case in CASES:
        if options.only and not any(part in case.name for part in options.only):
            continue
        if case.name in done and not options.only:
            continue
        row = row_of(case)
        print(json.dumps({name: row[name] for name in row if name != "versions"}), flush=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
