"""Estimates of memory against the real CPU allocator, over many combinations.

Each combination gets a child of its own: it traces two optimizer steps of the real trainer on fake
tensors, then runs the same two steps for real while torch's profiler records the allocator.
`results.jsonl` gets a row after each; what it already holds is not run again, failures are.
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
from autotune.process.server import PRELOAD, ChildServer  # noqa: E402
from benchmarks.estimate_exactness.cases import FACTORS, Case, chosen  # noqa: E402
from benchmarks.estimate_exactness.models import CONFIGS, write_model  # noqa: E402

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
IMPORTED = (*PRELOAD, "deepspeed", "autotune.estimate.tracing.trace")
WORKER = "benchmarks.estimate_exactness.worker:compare"


def server_environment() -> dict[str, str]:
    """What a child needs to find this code, and nothing from the network."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def compare(case: Case, server: ChildServer, models: Path, folder: Path) -> dict[str, Any]:
    """The row of one combination; `failure` is set where it could not be run."""
    probe = ChildFolder(path=folder)
    folder.mkdir(parents=True)
    write_json(probe.request, case.request(models / case.model).plain())
    ending = server.run(probe, WORKER, Limits(wall_s=600, stall_s=120))
    found = read_json(probe.reply)
    if found is None:
        said = probe.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = {"failure": said[-1] if said else ending.why}
    return {"name": case.name, **found, "case": case.plain()}


def about_this_run() -> dict[str, Any]:
    """What everybody else needs to get the rows again."""
    tree = _git("status", "--porcelain", "--", "autotune", "benchmarks/estimate_exactness/*.py")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") + (" and changes" if tree else ""),
        "processor": _processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def run(cases: list[Case], results: Path, servers: int) -> None:
    """Run what `results` does not hold yet, and add to it."""
    known = {row["name"] for row in rows_of(results) if "failure" not in row}
    waiting = [case for case in cases if case.name not in known]
    about = about_this_run()
    with tempfile.TemporaryDirectory(prefix="estimate-exactness-") as scratch:
        models = Path(scratch, "models")
        for name in CONFIGS:
            write_model(name, models / name)

        def work(number: int) -> None:
            log = Path(scratch, f"server-{number}.log")
            with ChildServer(log, IMPORTED, server_environment()) as server:
                for index in range(number, len(waiting), servers):
                    row = compare(waiting[index], server, models, Path(scratch, str(index)))
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**row, "about": about}) + "\n")
                    print(line_of(row), flush=True)

        with ThreadPoolExecutor(servers) as pool:
            list(pool.map(work, range(servers)))


def run_with(package: str, cases: Sequence[Case], results: Path) -> list[dict[str, Any]]:
    """The rows of combinations that need a package besides, written to `results` anew."""
    about = {**about_this_run(), package: version(package)}
    rows = []
    with tempfile.TemporaryDirectory(prefix="estimate-exactness-") as scratch:
        models = Path(scratch, "models")
        for name in {case.model for case in cases}:
            write_model(name, models / name)
        with ChildServer(Path(scratch, "log"), IMPORTED, server_environment()) as server:
            for index, case in enumerate(cases):
                row = compare(case, server, models, Path(scratch, str(index)))
                rows.append({**row, "about": about})
                print(line_of(row), flush=True)
    results.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def rows_of(results: Path) -> list[dict[str, Any]]:
    """The rows that a file of results holds: of each combination the last."""
    if not results.exists():
        return []
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return list({row["name"]: row for row in rows}.values())


def line_of(row: dict[str, Any]) -> str:
    """One row for people."""
    if "failure" in row:
        return f"FAILED     {row['name']}: {row['failure']}"
    return f"{row['error']:+9.4%}  {row['real_bytes'] / 2**20:7.1f} MiB  {row['name']}"


def spread(rows: Sequence[dict[str, Any]], estimate: str) -> str:
    """Median, 90th percentile and maximum of the size of the relative error, as cells."""
    sizes = sorted(abs(row[estimate] / row["real_bytes"] - 1) for row in rows)
    nearest = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
    return f"{statistics.median(sizes):.4%} | {nearest:.4%} | {sizes[-1]:.4%}"


def line(name: str, rows: Sequence[dict[str, Any]], estimate: str = "estimate_bytes") -> str:
    """One line of a table."""
    return f"| {name} | {len(rows)} | {spread(rows, estimate)} |\n"


HEAD = """| | combinations | median | p90 | maximum |
|---|---|---|---|---|
"""
WORST = """
## The worst

| error | real peak | at | combination |
|---|---|---|---|
"""


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: all, by each level of each factor, the worst, the failed."""
    done = [row for row in rows if "failure" not in row]
    text = "# Estimate against the real CPU allocator\n\n"
    text += (
        "Size of the relative error of the peak. Made by `run.py --table` from `results.jsonl`.\n\n"
    )
    text += HEAD + line("all", done)
    whole = [row for row in done if row["case"]["dtype"] == "float32" and not row["case"]["bf16"]]
    text += line("float32 throughout", whole)
    text += line("all, sums of gradients not in place", done, "estimate_unmerged_bytes")
    for factor, levels in FACTORS.items():
        text += f"\n## By {factor}\n\n{HEAD}"
        for level in levels:
            some = [row for row in done if row["case"][factor] == level]
            text += line(str(level), some) if some else ""
    text += WORST
    for row in sorted(done, key=lambda row: -abs(row["error"]))[:15]:
        at, size = row["peak_at"][1], row["real_bytes"] / 2**20
        text += f"| {row['error']:+.4%} | {size:.1f} MiB | `{at}` | {row['name']} |\n"
    seconds = [statistics.median(row[name] for row in done) for name in ("trace_s", "real_s")]
    text += f"\nSeconds, median: {seconds[0]:.1f} to trace, {seconds[1]:.1f} for real.\n"
    for row in rows:
        if "failure" in row:
            text += f"\nFailed: {row['name']}: {row['failure']}\n"
    return text


def main() -> None:
    """Run, then write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=260, help="combinations, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=2, help="children at a time, a thread each")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if not options.table:
        run(chosen(options.count, options.seed), options.results, options.servers)
    text = table(rows_of(options.results))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
