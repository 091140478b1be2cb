"""Plans of the grid of checkpointing against torch's own CUDA allocator, on a virtual GPU.

    scripts/virtual_gpu --kind a100-80gb -- python benchmarks/checkpointing/virtual.py

As `benchmarks/virtual_gpu`, with the values that it does not draw: each with all of the device, and
under a limit near what it reserved. `virtual_truth.jsonl` is what a trainer took, `virtual.jsonl`
what the plan says.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.process.child_server import ChildServer  # noqa: E402
from benchmarks.command import about_this_run, rows_of, server_environment  # noqa: E402
from benchmarks.virtual_gpu.cases import Case  # noqa: E402
from benchmarks.virtual_gpu.run import compare  # noqa: E402

HERE = Path(__file__).parent
SHAPES = (
    {"model": "qwen2-0.5b", "tuning": "full", "rows": 4, "ragged": True, "accumulation": 2},
    {"model": "llama-8b", "tuning": "lora", "rows": 8, "ragged": False, "accumulation": 1},
)


def cases() -> list[Case]:
    """Every value, for a small model trained whole and a large one with adapters."""
    common = {"method": "sft", "kind": "a100-80gb", "dropout": 0.0, "loss": "nll", "length": 1024}
    common |= {"optimizer": "adamw_torch_fused", "attention": "sdpa"}
    return [
        Case(**{**common, **shape, "checkpointing": value, "expandable": expandable})
        for value in ("every_2", "offload", "every_4", "selective")
        for shape in SHAPES
        for expandable in ((True,) if shape["ragged"] else (False,))
        if value != "selective" or shape["tuning"] == "full"
    ]


def main() -> None:
    """Run what is missing, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of wanted names")
    parser.add_argument("--truth", type=Path, default=HERE / "virtual_truth.jsonl")
    parser.add_argument("--results", type=Path, default=HERE / "virtual.jsonl")
    options = parser.parse_args()
    options.seed, options.truth_only = 0, False
    with (
        tempfile.TemporaryDirectory(prefix="checkpointing-virtual-") as log,
        ChildServer(Path(log) / "server.log", environment=server_environment()) as server,
    ):
        for number, case in enumerate(cases()):
            if all(part in case.name for part in options.only):
                compare(case, number, options, about_this_run(), server)
    truth = {row["name"]: row for row in rows_of(options.truth)}
    for row in rows_of(options.results):
        if "failure" in row or "allocated_bytes" not in truth[row["name"]]:
            print("FAILED", row["name"], row.get("failure"))
            continue
        real = truth[row["name"]]
        errors = [row[f"{n}_bytes"] / real[f"{n}_bytes"] - 1 for n in ("allocated", "reserved")]
        same = row["limited"]["oom"] == real["limited"]["oom"]
        print(
            *(f"{error:+.4%}" for error in errors), "same verdict" if same else "OTHER", row["name"]
        )


if __name__ == "__main__":
    main()
