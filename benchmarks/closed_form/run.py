"""The closed form against traces of the same candidates.

    python benchmarks/closed_form/run.py benchmarks/closed_form/job.yaml --device h200

Plans the job and prints, over all candidates that were traced themselves, the ratio of the
formula's peak to the trace's (both allocated bytes). Writes `results.jsonl` and `results.md`, or
where `--results` says.
"""

import argparse
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

from autotune.estimate.residual import Residual
from autotune.plan.candidates import by_formula
from autotune.plan.plan import plan
from autotune.space.job_file.load import load_job
from autotune.space.trl_config import settings

HERE = Path(__file__).parent
SHOWN = ("gradient_checkpointing", "loss_type", "attn_implementation", "padding_free")


def main() -> None:
    """Compare, and write the rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    asked = parser.parse_args()
    job, definition = load_job(asked.job, asked.set)
    made = plan(job, definition, Path(tempfile.mkdtemp()), device=asked.device)
    rows = []
    for candidate in made.space.candidates:
        traced = made.estimates[candidate.key]
        if not traced.traced:
            continue
        formula = by_formula(settings(job, made.facts, candidate), Residual(), made.limit_bytes, "")
        rows.append(
            {
                "knobs": candidate.knobs,
                "traced_bytes": traced.peak_allocated_bytes,
                "formula_bytes": formula.peak_allocated_bytes,
                "ratio": formula.peak_allocated_bytes / traced.peak_allocated_bytes,
                "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
            }
        )
    lines = ["| candidates | number | least | median | most |", "|---|---|---|---|---|"]
    groups: dict[str, list[float]] = {"all": [row["ratio"] for row in rows]}
    for row in rows:
        for name in SHOWN:
            groups.setdefault(f"{name}={row['knobs'][name]}", []).append(row["ratio"])
    for name, ratios in groups.items():
        ratios.sort()
        middle = ratios[len(ratios) // 2]
        lines.append(
            f"| {name} | {len(ratios)} | {ratios[0]:.2f} | {middle:.2f} | {ratios[-1]:.2f} |"
        )
    asked.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f"Formula over trace, allocated bytes; {asked.job.name} on {asked.device}.\n\n"
    asked.results.with_suffix(".md").write_text(text + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
