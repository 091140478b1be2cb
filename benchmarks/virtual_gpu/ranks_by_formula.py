"""Estimates of the recorded ranks by formula, beside what they took and what their traces say.

`results_ranks.jsonl` has the ranks, and their engines' traces with all layers. Needs no GPU,
virtual or real; some seconds a row on one core. What `ranks_by_formula.jsonl` holds is not made
again.

    python benchmarks/virtual_gpu/ranks_by_formula.py
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.plan.candidates import estimates_of  # noqa: E402
from autotune.plan.children import in_children, trace_server  # noqa: E402
from autotune.plan.device import placed, planned_facts  # noqa: E402
from autotune.plan.engines import answered  # noqa: E402
from autotune.plan.progress import Progress  # noqa: E402
from autotune.plan.trace_choice import Effort  # noqa: E402
from autotune.plan.variants import variant_tasks  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.run_folder import RunFolder  # noqa: E402
from autotune.space.bind import bind  # noqa: E402
from autotune.space.job_file.load import load_job  # noqa: E402
from autotune.space.trl_config import settings  # noqa: E402
from benchmarks.command import (  # noqa: E402
    Results,
    Rows,
    about_this_run,
    failures,
    parser_of,
    rows_of,
    run_and_tell,
)
from benchmarks.virtual_gpu.models import write_model  # noqa: E402
from benchmarks.virtual_gpu.ranks import FACTORS, NO_LIMIT, drawn, job_of  # noqa: E402

HERE = Path(__file__).parent
KIND = "a100-80gb"
LIMITS = (0.9, 0.95, 1.05, 1.1, 1.2, 1.5)
"""Of what was really reserved."""
Row = dict[str, Any]


def _estimates(task: Any, reply: Any) -> Any:
    return estimates_of([task], [reply], NO_LIMIT)


def by_formula(case: Row, known: Row, server: ChildServer, folder: Path) -> Row:
    """Reserved bytes by formula."""
    file = folder / "job.yaml"
    job_fields = job_of(case, write_model(case["model"], folder / "model"))
    file.write_text(json.dumps(job_fields), encoding="utf-8")
    job, definition = load_job(file)
    job, kind = placed(job, KIND)
    run = RunFolder(path=folder / "run")
    run.path.mkdir()
    facts = planned_facts(job, run, server, kind)
    candidate = bind(definition, job, facts).candidates[0]
    if any(known["knobs"].get(name, value) != value for name, value in candidate.values.items()):
        return {"failure": "another candidate than was recorded"}
    chosen = [settings(job, facts, candidate)]
    tasks = variant_tasks(chosen, rows=run.rows, limit=NO_LIMIT, cache=None)
    trace = in_children(server, folder / "traces", Progress())
    replies = answered(tasks, Effort(first=0), _estimates, trace, with_speeds=False)
    estimate = estimates_of(tasks, replies, NO_LIMIT)[candidate.key]
    return {
        "formula_bytes": estimate.peak_reserved_bytes,
        "traced_bytes": known["plan"]["reserved_bytes"],
        "real_bytes": known["reserved_bytes"],
    }


def table(rows: Rows) -> str:
    """Errors of reserved bytes, and wrong verdicts under limits around the real ones."""
    done = [row for row in rows if "failure" not in row]
    text = "| | rows | median | p90 | least | most | wrong under "
    text += (
        ", ".join(f"{limit:g}" for limit in LIMITS) + " x real |\n|---|---|---|---|---|---|---|\n"
    )
    for name in ("formula", "traced"):
        ratios = [row[f"{name}_bytes"] / row["real_bytes"] for row in done]
        sizes = sorted(abs(ratio - 1) for ratio in ratios)
        figures = [statistics.median(sizes), sizes[round(0.9 * (len(sizes) - 1))]]
        cells = [f"{figure:.1%}" for figure in figures]
        cells += [f"{ratio - 1:+.1%}" for ratio in (min(ratios), max(ratios))]
        wrong = [sum((ratio <= limit) != (limit >= 1) for ratio in ratios) for limit in LIMITS]
        text += f"| {name} | {len(done)} | {' | '.join(cells)} | {', '.join(map(str, wrong))} |\n"
    return text + failures(rows)


def run(results: Results) -> None:
    """Estimate what is missing."""
    about = about_this_run()
    known = {row["name"]: row for row in rows_of(HERE / "results_ranks.jsonl")}
    done = {row["name"] for row in results.rows() if "failure" not in row}
    with (
        tempfile.TemporaryDirectory(prefix="ranks-by-formula-") as scratch,
        trace_server(Path(scratch), elsewhere=True) as server,
    ):
        for number in range(24):
            case = drawn(15, number)
            name = " ".join(f"{factor}={case[factor]}" for factor in FACTORS)
            if name not in known or name in done or not results.asked(name):
                continue
            if case["strategy"] == "DDP":
                continue
            folder = Path(scratch, str(number))
            folder.mkdir()
            row = by_formula(case, known[name], server, folder)
            results.add({"name": name, **row, "about": about})


if __name__ == "__main__":
    options = parser_of(__doc__, HERE / "ranks_by_formula.jsonl").parse_args()
    run_and_tell(options, run, table)
