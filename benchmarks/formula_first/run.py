"""Engines by formula against traces of the same candidates: memory, speed, and what comes first.

    python benchmarks/formula_first/run.py benchmarks/formula_first/job.yaml --device h100

Plans the job twice, with the engine of the first candidate traced and with every engine, and
compares what the first plan has by formula. Writes `results.jsonl` and `results.md`, or
where `--results` says.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.plan.plan import Plan, plan
from autotune.plan.trace_choice import EVERY, PROMISING, Effort
from autotune.space.job_file.load import load_job
from autotune.space.sharding.sharding import engine_name, sharding_of

HERE = Path(__file__).parent
HEAD = "| | candidates | peak, least | median | most | tokens/s, least | median | most |"


def rows_of(quick: Plan, whole: Plan) -> list[dict[str, Any]]:
    """A row for each candidate that the first plan has by formula."""
    rows = []
    for candidate in quick.space.candidates:
        formula, traced = (one.estimates[candidate.key] for one in (quick, whole))
        if formula.traced or not traced.traced:
            continue
        rows.append(
            {
                "engine": engine_name(sharding_of(candidate.values, quick.devices)),
                "knobs": candidate.knobs,
                "peak_bytes": [formula.peak_reserved_bytes, traced.peak_reserved_bytes],
                "tokens_per_s": [formula.tokens_per_s, traced.tokens_per_s],
                "fits": [formula.fits, traced.fits],
            }
        )
    return rows


def place_of_best(ranked_by: Plan, truth: Plan) -> tuple[int, float]:
    """(place that a plan gives to the fastest of another one, speed of its own first over that)."""
    best, estimate = truth.ranked()[0]
    order = [candidate.key for candidate, _ in ranked_by.ranked()]
    own = truth.estimates[order[0]].tokens_per_s or 0.0
    return order.index(best.key) + 1, own / (estimate.tokens_per_s or 1.0)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The errors of the formula, by engine."""
    lines = [HEAD, "|---|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(["all", *(row["engine"] for row in rows)]):
        own = [row for row in rows if name in ("all", row["engine"])]
        cells = [f"{len(own)}"]
        for field in ("peak_bytes", "tokens_per_s"):
            off = sorted(row[field][0] / row[field][1] - 1 for row in own)
            cells += [f"{one:+.0%}" for one in (off[0], statistics.median(off), off[-1])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare, and write the rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--device", default="h100")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    asked = parser.parse_args()
    job, definition = load_job(asked.job, asked.set)
    plans = []
    for effort in (Effort(first=1), PROMISING, EVERY):
        scratch = Path(tempfile.mkdtemp())
        plans.append(plan(job, definition, scratch, device=asked.device, effort=effort))
    quick, usual, whole = plans
    rows = rows_of(quick, whole)
    about = {name: version(name) for name in ("torch", "transformers", "trl", "deepspeed")}
    text = "".join(json.dumps({**row, "versions": about}) + "\n" for row in rows)
    asked.results.write_text(text, encoding="utf-8")
    place, speed = place_of_best(usual, whole)
    told = f"What the formula says over what a trace says; {asked.job.name} on {asked.device}.\n\n"
    told += table(rows)
    told += (
        f"\nThe fastest of {len(whole.estimates)} candidates by traces is number {place} of the "
    )
    told += (
        f"usual plan, whose first one has {speed:.1%} of its speed. Traced for that: engines of "
    )
    told += f"{len(whole.estimates) - usual.by_formula} candidates.\n"
    asked.results.with_suffix(".md").write_text(told, encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
