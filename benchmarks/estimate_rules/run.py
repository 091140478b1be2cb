"""Scaled traces against whole ones, over many combinations.

Each combination gets a child of its own: it estimates a candidate as `autotune plan` does (a trace
of four decoder layers at a few small micro-batches, scaled), then traces the candidate whole: all
layers, its own micro-batch. `results.jsonl` gets a row after each; what it already holds is not run
again.
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
from benchmarks.estimate_rules.cases import (  # noqa: E402
    CONFIGS,
    FACTORS,
    Case,
    chosen,
    common,
    write_model,
)

HERE = Path(__file__).parent
WORKER = "benchmarks.estimate_rules.worker:compare"
ERRORS = {
    "allocated_error": "peak of allocated bytes",
    "reserved_error": "peak of reserved bytes",
    "expandable_error": "peak of reserved bytes, expandable segments",
    "flops_error": "FLOPs of a micro-step",
    "moved_error": "moved bytes of a micro-step",
    "operators_error": "operators of a micro-step",
}


def compare(case: Case, server: ChildServer, models: Path, folder: Path) -> dict[str, Any]:
    """Return the row of one combination; `failure` is set where it could not be run."""
    request = {"case": case.plain(), "model_path": str(models / case.model)}
    found = answer(server, WORKER, request, folder, Limits(wall_s=1200, stall_s=300))
    return {"name": case.name, **found, "case": case.plain()}


def run(cases: Sequence[Case], results: Results, servers: int) -> None:
    """Run what `results` does not hold yet, and add to it."""
    waiting = results.waiting(cases)
    with tempfile.TemporaryDirectory(prefix="estimate-rules-") as scratch:
        models = Path(scratch)
        for name in {case.model for case in waiting}:
            write_model(name, models / name)
        run_in_children(
            waiting,
            results,
            lambda case, server, folder: compare(case, server, models, folder),
            line_of,
            servers=servers,
        )


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


def table(rows: Sequence[dict[str, Any]]) -> str:
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
    return text + _worst(done) + _seconds(done) + failures(rows)


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


def main() -> None:
    """Run, then write and print the table."""
    parser = parser_of(__doc__, HERE / "results.jsonl")
    parser.add_argument("--count", type=int, default=44, help="combinations, and the common ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=1, help="children at a time, a thread each")
    options = parser.parse_args()
    cases = [*common(), *chosen(options.count, options.seed)]
    run_and_tell(options, lambda results: run(cases, results, options.servers), table)


if __name__ == "__main__":
    main()
