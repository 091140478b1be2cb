"""Whether a plan answers as one does that traces every candidate of the whole space.

    python -m benchmarks.plan_time.agreement [--only NAME]

Each job is planned as usual and with `--all --trace-all`, each with an empty cache. A row says both
answers, and what the usual one loses: the speed that the full plan gives to its own answer over the
speed that it gives to the usual one. Jobs that have a row are left out.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.facts.stack import installed
from benchmarks.command import rows_of
from benchmarks.plan_time.cases import HERE, PROBLEMS, Case
from benchmarks.plan_time.run import planned

RESULTS = Path(__file__).parent / "agreement.jsonl"
_JOBS = {
    "0.5B SFT": PROBLEMS / "sft-0.5b.yaml",
    "0.1B SFT": PROBLEMS / "sft-small-llama.yaml",
    "4B reward": PROBLEMS / "reward-gemma3-4b.yaml",
    "8B LoRA DPO": HERE / "jobs/dpo-lora-8b.yaml",
    "0.36B SFT": HERE / "jobs/sft-full-360m.yaml",
    "7B QLoRA SFT": HERE / "jobs/sft-qlora-7b.yaml",
    "7B LoRA SFT": HERE / "jobs/sft-lora-7b.yaml",
}
_PLANS = (
    ("0.1B SFT", "rtx-4090"),
    ("0.5B SFT", "GeForce RTX 3060 12 GB"),
    ("0.36B SFT", "GeForce RTX 3060 12 GB"),
    ("7B QLoRA SFT", "memory=16GiB,tflops=100,bandwidth=500"),
    ("4B reward", "a100-40gb"),
    ("8B LoRA DPO", "a100-80gb"),
    ("0.1B SFT", "GeForce RTX 3060 12 GB"),
    ("0.5B SFT", "h100"),
    ("0.36B SFT", "t4"),
    ("7B LoRA SFT", "a100-80gb"),
    ("4B reward", "h200"),
    ("8B LoRA DPO", "h100"),
)
CASES = [
    Case(name=f"{name} on {device}", job=_JOBS[name], device=device, most_s=0.0)
    for name, device in _PLANS
]


def row_of(case: Case) -> dict[str, Any]:
    """Both plans of a case."""
    with tempfile.TemporaryDirectory(prefix="plan-agreement-") as cache:
        usual, _ = planned(case, cache)
    with tempfile.TemporaryDirectory(prefix="plan-agreement-") as cache:
        full, plan = planned(case, cache, "--all", "--trace-all")
    same = next((c for c in plan["candidates"] if c["knobs"] == usual["knobs"]), None)
    loss = None
    if same is not None and same["estimate"]["tokens_per_s"] and full["tokens_per_s"]:
        loss = round(full["tokens_per_s"] / same["estimate"]["tokens_per_s"] - 1, 4)
    return {
        "name": case.name,
        "device": case.device,
        "usual": usual,
        "full": full,
        "usual_in_full": same and {"fits": same["fits"], **_few(same["estimate"])},
        "loss": loss,
        "versions": installed().versions,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _few(estimate: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate[name] for name in ("tokens_per_s", "peak_memory_bytes", "p_oom")}


def main() -> None:
    """Plan, and add the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a part of the name of a case")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = {row["name"] for row in rows_of(options.results)} if options.results.exists() else set()
    for case in CASES:
        if case.name in done or not any(part in case.name for part in options.only or [""]):
            continue
        row = row_of(case)
        print(json.dumps({name: row[name] for name in row if name != "versions"}), flush=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
