"""The traces of sharded trainings against what real ranks take on the CPU.

    python benchmarks/sharding_exactness/run.py           # half an hour on two cores; goes on
    python benchmarks/sharding_exactness/run.py --table   # results.md from results.jsonl again

Needs a C compiler (`live_bytes.c`), as DeepSpeed's Adam for the CPU does.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import (  # noqa: E402
    Results,
    about_this_run,
    failures,
    parser_of,
    run_and_tell,
)
from benchmarks.sharding_exactness.cases import (  # noqa: E402
    MODELS,
    STRATEGIES,
    Case,
    cases,
    write_model,
)

HERE = Path(__file__).parent
HEAD = "| | cases | median | p90 | maximum | signed |\n|---|---|---|---|---|---|\n"


def compare(asked: Iterable[Case], results: Path, scratch: Path) -> None:
    """Run cases for real and traced; each adds a line to `results`.

    Raises:
        CalledProcessError: there is no C compiler, or the process that forks the ranks died.
    """
    library = scratch / "live_bytes.so"
    source = str(HERE / "live_bytes.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), source], check=True)
    for name in MODELS:
        write_model(name, scratch / "models" / name)
    told = {"models": str(scratch / "models"), "about": about_this_run()}
    told["cases"] = [case.plain() for case in asked]
    (scratch / "cases.json").write_text(json.dumps(told), encoding="utf-8")
    script = HERE / "ranks.py"
    subprocess.run(
        [sys.executable, str(script), str(scratch / "cases.json"), str(results)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library)},
        check=True,
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    text = "# Traces of sharded trainings against real ranks\n\n"
    text += "The size of the error of the worst rank's peak, and the median with its sign.\n\n"
    text += HEAD + _line("all", done)
    for strategy in STRATEGIES:
        text += _line(strategy, [row for row in done if row["case"]["strategy"] == strategy])
    for ranks in (1, 2, 4):
        name = f"{ranks} rank{'s' * (ranks > 1)}"
        text += _line(name, [row for row in done if row["case"]["ranks"] == ranks])
    text += "\n| case | estimate MiB | real MiB | error | peak at |\n|---|---|---|---|---|\n"
    for row in done:
        sizes = " | ".join(f"{row[key] / 2**20:.2f}" for key in ("estimate_bytes", "real_bytes"))
        place = f"{row['peak_at'][0]}, `{row['peak_at'][1]}`"
        text += f"| {row['name']} | {sizes} | {row['error']:+.4%} | {place} |\n"
    times = [statistics.median(row[key] for row in done) for key in ("trace_s", "real_s")]
    text += f"\nSeconds, median: {times[0]:.1f} to trace, {times[1]:.1f} for real.\n"
    return text + failures(rows)


def _line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    sizes = sorted(abs(row["error"]) for row in rows)
    p90 = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
    figures = [statistics.median(sizes), p90, sizes[-1]]
    cells = " | ".join(f"{figure:.4%}" for figure in figures)
    signed = statistics.median(row["error"] for row in rows)
    return f"| {name} | {len(rows)} | {cells} | {signed:+.4%} |\n"


def run(results: Results) -> None:
    """Compare what is missing."""
    with tempfile.TemporaryDirectory(prefix="sharding-exactness-") as scratch:
        compare(results.waiting(cases()), results.path, Path(scratch))


def main() -> None:
    """Run what is missing, then write the table."""
    run_and_tell(parser_of(__doc__, HERE / "results.jsonl").parse_args(), run, table)


if __name__ == "__main__":
    main()
