"""Scaled traces against whole ones, over many combinations.

Each combination gets a child of its own: it estimates a candidate as `autotune plan` does (a trace
of four decoder layers at a few small micro-batches, scaled), then traces the candidate whole: all
layers, its own micro-batch. `results.jsonl` gets a row after each; what it already holds is not run
again.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder, read_json, write_json  # noqa: E402
from autotune.process.server import ChildServer  # noqa: E402
from benchmarks.estimate_rules.cases import (  # noqa: E402
    CONFIGS,
    FACTORS,
    Case,
    chosen,
    common,
    write_model,
)

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
WORKER = "benchmarks.estimate_rules.worker:compare"
ERRORS = {
    "allocated_error": "peak of allocated bytes",
    "reserved_error": "peak of reserved bytes",
    "expandable_error": "peak of reserved bytes, expandable segments",
    "flops_error": "FLOPs of a micro-step",
    "moved_error": "moved bytes of a micro-step",
    "operators_error": "operators of a micro-step",
}


def server_environment() -> dict[str, str]:
    """What a child needs to find this code, and nothing from the network."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def compare(case: Case, server: ChildServer, models: Path, folder: Path) -> dict[str, Any]:
    """The row of one combination; `failure` is set where it could not be run."""
    probe = ChildFolder(path=folder)
    folder.mkdir(parents=True)
    write_json(probe.request, {"case": case.plain(), "model_path": str(models / case.model)})
    ending = server.run(probe, WORKER, Limits(wall_s=1200, stall_s=300))
    found = read_json(probe.reply)
    if found is None:
        said = probe.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = {"failure": said[-1] if said else ending.why}
    return {"name": case.name, **found, "case": case.plain()}


def about_this_run() -> dict[str, Any]:
    """What everybody else needs to get the rows again."""
    tree = _git("status", "--porcelain", "--", "autotune", "benchmarks/estimate_rules/*.py")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") + (" and changes" if tree else ""),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in PACKAGES},
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def run(cases: list[Case], results: Path, servers: int) -> None:
    """Run what `results` does not hold yet, and add to it."""
    known = {row["name"] for row in rows_of(results)}
    waiting = [case for case in cases if case.name not in known]
    about = about_this_run()
    with tempfile.TemporaryDirectory(prefix="estimate-rules-") as scratch:
        models = Path(scratch, "models")
        for name in CONFIGS:
            write_model(name, models / name)

        def work(number: int) -> None:
            log = Path(scratch, f"server-{number}.log")
            with ChildServer(log, environment=server_environment()) as server:
                for index in range(number, len(waiting), servers):
                    row = compare(waiting[index], server, models, Path(scratch, str(index)))
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**row, "about": about}) + "\n")
                    print(line_of(row), flush=True)

        with ThreadPoolExecutor(servers) as pool:
            list(pool.map(work, range(servers)))


def rows_of(results: Path) -> list[dict[str, Any]]:
    """All rows that a file of results holds."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def line_of(row: dict[str, Any]) -> str:
    """One row for people."""
    if "failure" in row:
        return f"FAILED     {row['name']}: {row['failure']}"
    errors = " ".join(f"{row[name]:+9.4%}" for name in ERRORS)
    seconds = f"{row['trace_s'] + row['scale_s']:5.1f} s for {row['whole_s']:5.1f} s"
    return f"{errors}  {seconds}  {row['name']}{'  WHOLE' if row['whole'] else ''}"


def spread(errors: Sequence[float]) -> str:
    """Median, 90th percentile and maximum of the size of errors, as cells of a table."""
    sizes = sorted(abs(error) for error in errors)
    nearest = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
    return f"{statistics.median(sizes):.4%} | {nearest:.4%} | {sizes[-1]:.4%}"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: all, the peak by each factor's levels, the worst, the failed."""
    done = [row for row in rows if "failure" not in row]
    text = "# Scaled traces against whole ones\n\n"
    text += "Size of the relative error. Made by `run.py --table` from `results.jsonl`.\n\n"
    text += f"{len(done)} combinations; the rule did not hold, so that all layers were traced, in "
    text += f"{sum(row['whole'] for row in done)} of them; the peak was at another operator in "
    text += f"{sum(not row['same_peak'] for row in done)}.\n\n"
    text += "| | median | p90 | maximum |\n|---|---|---|---|\n"
    for key, name in ERRORS.items():
        text += f"| {name} | {spread([row[key] for row in done])} |\n"
    head = "| | combinations | median | p90 | maximum |\n|---|---|---|---|---|\n"
    for factor, levels in FACTORS.items():
        text += f"\n## Allocated bytes by {factor}\n\n{head}"
        for level in levels:
            some = [row["allocated_error"] for row in done if row["case"][factor] == level]
            text += f"| {level} | {len(some)} | {spread(some)} |\n" if some else ""
    return text + _worst(done) + _seconds(done) + _failed(rows)


def _worst(done: list[dict[str, Any]]) -> str:
    text = "\n## The worst\n\n| allocated | reserved | expandable | peak at | combination |\n"
    text += "|---|---|---|---|---|\n"
    names = list(ERRORS)[:3]
    for row in sorted(done, key=lambda row: -max(abs(row[name]) for name in names))[:12]:
        cells = " | ".join(f"{row[name]:+.4%}" for name in names)
        text += f"| {cells} | `{row['peak_at'][1]}` | {row['name']} |\n"
    return text


def _seconds(done: list[dict[str, Any]]) -> str:
    text = "\n## Seconds, median\n\n| model | layers | small trace | scale and replay | "
    text += "whole trace |\n|---|---|---|---|---|\n"
    for model, config in CONFIGS.items():
        some = [row for row in done if row["case"]["model"] == model]
        if some:
            found = [statistics.median(row[n] for row in some) for n in _TIMES]
            cells = " | ".join(f"{seconds:.1f}" for seconds in found)
            text += f"| {model} | {config['num_hidden_layers']} | {cells} |\n"
    return text


_TIMES = ("trace_s", "scale_s", "whole_s")


def _failed(rows: list[dict[str, Any]]) -> str:
    return "".join(
        f"\nFailed: {row['name']}: {row['failure']}\n" for row in rows if "failure" in row
    )


def main() -> None:
    """Run, then write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=44, help="combinations, and the common ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=1, help="children at a time, a thread each")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if not options.table:
        run([*common(), *chosen(options.count, options.seed)], options.results, options.servers)
    text = table(rows_of(options.results))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
