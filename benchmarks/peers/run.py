"""What others estimate, what we estimate, and what the real CPU allocator then says.

    python benchmarks/peers/run.py                     # about 15 minutes
    python benchmarks/peers/run.py --table             # results.md from results.jsonl again
    pip install --no-deps --target DIR fm-training-estimator dataclass-wizard
    PYTHONPATH=DIR python benchmarks/peers/run.py      # with the fourth peer

Each point gets a child of its own, which asks every estimator and then trains two optimizer steps
of the real trainer under torch's profiler.
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
    parser_of,
    run_and_tell,
    run_in_children,
)
from benchmarks.estimate_exactness import models  # noqa: E402
from benchmarks.estimate_exactness.cases import Case  # noqa: E402
from benchmarks.peers.points import LARGE, QWEN_05B, points  # noqa: E402

HERE = Path(__file__).parent
WORKER = "benchmarks.peers.worker:compare"
HEAD = "| estimator | points | median | p90 | most | signed median | failed | seconds, median |\n"


def compare(case: Case, server: ChildServer, scratch: Path, folder: Path) -> dict[str, Any]:
    """Return the row of one point; `failure` is set where it could not be run."""
    request = case.request(scratch / case.model).plain()
    found = answer(server, WORKER, request, folder, Limits(wall_s=1200, stall_s=1200))
    return {"name": case.name, **found, "case": case.plain()}


def run(results: Results) -> None:
    """Run what `results` does not hold yet, and add to it."""
    waiting = results.waiting(points())
    models.CONFIGS[LARGE] = QWEN_05B
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        for model in {case.model for case in waiting}:
            models.write_model(model, Path(name, model))
        run_in_children(
            waiting,
            results,
            lambda case, server, folder: compare(case, server, Path(name), folder),
            lambda row: f"{row.get('failure') or ratios(row)} {row['name']}",
        )


def ratios(row: dict[str, Any]) -> dict[str, float | None]:
    """Estimate over truth, by estimator."""
    return {
        name: None if told["bytes"] is None else round(told["bytes"] / row["real_bytes"], 4)
        for name, told in row["told"].items()
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    text = "# Estimators against the real CPU allocator\n\nSize of the relative error of the peak "
    text += "of allocated bytes. `-`: the estimator does not claim to know. Made by `run.py`.\n"
    groups = {
        "small models, full tuning": lambda c: c["model"] != LARGE and c["method"] == "full",
        "small models, LoRA": lambda c: c["model"] != LARGE and c["method"] != "full",
        "0.5B shape, full tuning": lambda c: c["model"] == LARGE and c["method"] == "full",
        "0.5B shape, LoRA": lambda c: c["model"] == LARGE and c["method"] != "full",
    }
    for title, belongs in groups.items():
        some = [row for row in done if belongs(row["case"])]
        text += f"\n## {title}\n\n{HEAD}|---|---|---|---|---|---|---|---|\n"
        for name in some[0]["told"] if some else ():
            text += line(name, some)
    text += "\n## Every point: estimate / truth\n\n"
    for row in done:
        told = ", ".join(f"{name} {value or '-'}" for name, value in ratios(row).items())
        text += f"- {row['name']} ({row['real_bytes'] / 2**20:.0f} MiB): {told}\n"
    failures = {
        f"{name}: {told['failure']}"
        for row in done
        for name, told in row["told"].items()
        if told.get("failure")
    }
    return text + "".join(f"\nFailed: {failure}\n" for failure in sorted(failures))


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """One estimator's line."""
    told = [row["told"][name] for row in rows]
    errors = [ratio - 1 for row in rows if (ratio := ratios(row)[name]) is not None]
    failed = sum("failure" in one for one in told)
    if not errors:
        return f"| {name} | 0 | - | - | - | - | {failed} | - |\n"
    sizes = sorted(map(abs, errors))
    cells = (statistics.median(sizes), sizes[int(0.9 * (len(sizes) - 1))], sizes[-1])
    spread = " | ".join(f"{cell:.2%}" for cell in cells)
    seconds = statistics.median(one["seconds"] for one in told)
    signed = f"{statistics.median(errors):+.1%}"
    return f"| {name} | {len(errors)} | {spread} | {signed} | {failed} | {seconds:.1f} |\n"


def main() -> None:
    """Run, then write and print the table."""
    run_and_tell(parser_of(__doc__, HERE / "results.jsonl").parse_args(), run, table)


if __name__ == "__main__":
    main()
