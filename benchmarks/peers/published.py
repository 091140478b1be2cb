"""What the calculators that take a model's name say of runs that others have measured on a GPU.

python benchmarks/peers/published.py     # seconds; needs no GPU; writes published.md

The runs are those of full tuning on one GPU in benchmarks/published_runs, whose own plans
(results.jsonl there) stand beside.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import rows_of  # noqa: E402
from benchmarks.peers.estimators import accelerate_estimate, deepspeed_estimate  # noqa: E402
from benchmarks.published_runs.models import MODELS  # noqa: E402
from benchmarks.published_runs.run import RESULTS, runs  # noqa: E402
from benchmarks.published_runs.settings import Row, job_of  # noqa: E402
from benchmarks.published_runs.table import planned_bytes  # noqa: E402

GB = 1e9
HERE = Path(__file__).parent
SHARDED = "qwen-readme"
"""Its full tuning ran under ZeRO-3 on several GPUs."""
GPUS = {
    "A100-80GB": 80,
    "A100-40GB": 40,
    "A100 (44 GB slice)": 44,
    "A10G-24GB": 24,
    "L4-24GB": 24,
    "T4-16GB": 16,
    "RTX2070-8GB": 8,
}
"""GiB, as they are sold."""
HEAD = f"""# Calculators against runs on GPUs

`python benchmarks/peers/published.py`. Full tuning on one GPU; sources and settings:
`benchmarks/published_runs/runs.csv`. GB are 10^9 bytes; in brackets whether it fits that GPU, in
reality and by each figure. Peaks are torch's (`max_allocated`) or `nvidia-smi`'s of the process.

| run | GPU | measured | autotune | accelerate estimate-memory | DeepSpeed's formula |
|{"---|" * 6}
"""


def lines() -> Iterator[tuple[str, list[bool]]]:
    """A row of the table for each run, and of each figure whether its verdict is right."""
    plans = {row["name"]: row for row in rows_of(RESULTS) if "failure" not in row}
    for name, row in runs():
        if row["tuning"] != "full" or row["source_group"] == SHARDED or name not in plans:
            continue
        fitted, room = row["measured_verdict"] == "fits", GPUS[row["gpu"]] * 2**30
        plan = plans[name]
        others = [int(estimate(asked(row)) or 0) for estimate in ESTIMATES]
        verdicts = [bool(plan["fits"]), *(other <= room for other in others)]
        figures = [planned_bytes(row, plan["estimate"]), *others]
        real = f"{int(row['measured_bytes']) / GB:.2f} " if row["measured_bytes"] else ""
        cells = [name, row["gpu"], f"{real}({'fits' if fitted else 'OOM'})"]
        cells += [
            f"{size / GB:.2f} ({'fits' if fits else 'OOM'})"
            for size, fits in zip(figures, verdicts, strict=True)
        ]
        yield f"| {' | '.join(cells)} |\n", [fits == fitted for fits in verdicts]


def asked(row: Row) -> Any:
    """A run as the estimators of `estimators.py` are asked of one: they look at weights alone."""
    job = job_of(row)
    folder = Path(tempfile.mkdtemp(prefix="published-"))
    (folder / "config.json").write_text(json.dumps(MODELS[row["model"]]), encoding="utf-8")
    config = {"dtype": job["dtype"], "bf16": True, "attn_implementation": "sdpa"}
    return SimpleNamespace(config=config, model_path=str(folder))


ESTIMATES = (accelerate_estimate, deepspeed_estimate)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "published.md")
    out = parser.parse_args().out
    rows = list(lines())
    right = [sum(column) for column in zip(*(verdicts for _, verdicts in rows), strict=True)]
    shares = " | ".join(f"{count} of {len(rows)}" for count in right)
    text = (
        HEAD + "".join(line for line, _ in rows) + f"| verdicts that are right | | | {shares} |\n"
    )
    out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
