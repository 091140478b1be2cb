"""Estimates of memory against the real CPU allocator, over many combinations.

Each combination gets a child of its own: it traces two optimizer steps of the real trainer on fake
tensors, then runs the same two steps for real while torch's profiler records the allocator.
`results.jsonl` gets a row after each; what it already holds is not run again, failures are.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from benchmarks.command import (  # noqa: E402
    Results,
    answer,
    failures,
    parser_of,
    run_and_tell,
    run_in_children,
)
from benchmarks.estimate_exactness.cases import FACTORS, Case, chosen  # noqa: E402
from benchmarks.estimate_exactness.models import write_model  # noqa: E402

HERE = Path(__file__).parent
WORKER = "benchmarks.estimate_exactness.worker:compare"


def compare(case: Case, server: ChildServer, models: Path, folder: Path) -> dict[str, Any]:
    """Return the row of one combination; `failure` is set where it could not be run."""
    request = case.request(models / case.model).plain()
    found = answer(server, WORKER, request, folder, Limits(wall_s=600, stall_s=120))
    return {"name": case.name, **found, "case": case.plain()}


def run(
    cases: Sequence[Case], results: Results, servers: int = 1, packages: Sequence[str] = ()
) -> None:
    """Run what `results` does not hold yet, and add to it."""
    waiting = results.waiting(cases)
    with tempfile.TemporaryDirectory(prefix="estimate-exactness-") as scratch:
        models = Path(scratch)
        for name in {case.model for case in waiting}:
            write_model(name, models / name)
        run_in_children(
            waiting,
            results,
            lambda case, server, folder: compare(case, server, models, folder),
            line_of,
            servers=servers,
            packages=packages,
        )


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
    """Return one line of a table; none where there are no rows."""
    if not rows:
        return ""
    return f"| {name} | {len(rows)} | {spread(rows, estimate)} |\n"


HEAD = """| | combinations | median | p90 | maximum |
|---|---|---|---|---|
"""
WORST = """
## The worst

| error | real peak | at | combination |
|---|---|---|---|
"""


def table(rows: Sequence[dict[str, Any]]) -> str:
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
    return text + failures(rows)


def main() -> None:
    """Run, then write and print the table."""
    parser = parser_of(__doc__, HERE / "results.jsonl")
    parser.add_argument("--count", type=int, default=260, help="combinations, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=2, help="children at a time, a thread each")
    options = parser.parse_args()
    cases = chosen(options.count, options.seed)
    run_and_tell(options, lambda results: run(cases, results, options.servers), table)


if __name__ == "__main__":
    main()
