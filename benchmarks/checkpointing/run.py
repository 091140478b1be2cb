"""What the grid of checkpointing gains over yes and no: jobs that memory limits, planned with both.

    python -m benchmarks.checkpointing.run [--only NAME] [--errors]

Each plan has an empty cache. With `--errors` every value of the grid is also traced, and held
against the estimate that the plan made of it from the traces of none and all layers.
"""

import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.facts.stack import installed
from autotune.job.job import Job
from autotune.plan.grid import BETWEEN
from autotune.plan.plan import Plan, plan
from autotune.report.words import candidate_text
from autotune.space.checkpointing import CHECKPOINTING, GRID
from autotune.space.definition import load_definition
from benchmarks.command import Results, parser_of

HERE = Path(__file__).parent
YES_NO, WHOLE = "yes or no", "grid"


@dataclass(frozen=True)
class Case:
    """A job, and the device that it is planned for."""

    name: str
    device: str
    fields: dict[str, Any]


LLAMA = {"model": "llama-3.1-8b", "tuning": "lora"}
CASES = (
    Case("7B LoRA, rtx4090", "rtx4090", {"model": "qwen2.5-7b", "tuning": "lora"}),
    Case("0.5B full, rtx4090", "rtx4090", {"model": "qwen2.5-0.5b", "max_length": 4096}),
    Case("3B full, h100", "h100", {"model": "qwen2.5-3b", "max_length": 2048}),
    Case("14B QLoRA, rtx4090", "rtx4090", {"model": "qwen2.5-14b", "tuning": "qlora"}),
    Case("7B LoRA, l4", "l4", {"model": "qwen2.5-7b", "tuning": "lora"}),
    Case("0.5B full, t4", "t4", {"model": "qwen2.5-0.5b"}),
    Case("8B LoRA, 2048 tokens, rtx4090", "rtx4090", {**LLAMA, "max_length": 2048}),
    Case("14B LoRA, a100-40gb", "a100-40gb", {"model": "qwen2.5-14b", "tuning": "lora"}),
)


def job_of(case: Case, **fixed: Any) -> Job:
    """The job, with 10,000 rows of one length."""
    length = case.fields.get("max_length", 1024)
    return Job.model_validate(
        {
            "method": "sft",
            "global_batch_size": 32,
            "max_length": length,
            "dataset": {"lengths": {"max": length, "rows": 10_000}},
            "fixed": fixed,
            **case.fields,
        }
    )


def planned(case: Case, **fixed: Any) -> tuple[Plan, float]:
    """A plan and its seconds; with nothing fixed, of the whole grid."""
    definition = load_definition("sft")
    if fixed.pop(YES_NO, False):
        knobs = tuple(
            dataclasses.replace(knob, values=[False, True]) if knob.name == CHECKPOINTING else knob
            for knob in definition.knobs
        )
        definition = dataclasses.replace(definition, knobs=knobs)
    with tempfile.TemporaryDirectory(prefix="checkpointing-") as scratch:
        os.environ["AUTOTUNE_CACHE"] = str(Path(scratch) / "cache")
        began = time.monotonic()
        made = plan(job_of(case, **fixed), definition, Path(scratch), device=case.device, ways=0)
        return made, round(time.monotonic() - began, 1)


def figures(made: Plan, seconds: float) -> dict[str, Any]:
    """The first choice of a plan."""
    first = made.choices[0]
    return {
        "choice": candidate_text(first.candidate, made.space, 1),
        "safe": first.safe,
        "tokens_per_s": round(first.estimate.tokens_per_s or 0.0, 1),
        "peak_bytes": first.estimate.peak_memory_bytes,
        "limit_bytes": made.limit_bytes,
        "method": first.estimate.method,
        "candidates": len(made.space.candidates),
        "seconds": seconds,
    }


def errors(case: Case, grid: Plan) -> Iterator[dict[str, Any]]:
    """What each value that was not traced in a plan takes, over its estimate there."""
    for value in GRID:
        before = {
            one.key: grid.estimates[one.key]
            for one in grid.space.candidates
            if one.values.get(CHECKPOINTING) == value and grid.estimates[one.key].method == BETWEEN
        }
        if not before:
            continue
        traced = planned(case, **{CHECKPOINTING: value})[0].estimates
        known = [key for key in before if key in traced and not before[key].at_least]
        peaks = [before[k].peak_memory_bytes / traced[k].peak_memory_bytes - 1 for k in known]
        speeds = [
            (before[k].tokens_per_s or 0.0) / (traced[k].tokens_per_s or 1.0) - 1 for k in known
        ]
        yield {"value": value, "peak": spread(peaks), "speed": spread(speeds), "of": len(known)}


def spread(found: list[float]) -> list[float]:
    """The least, the median and the most."""
    if not found:
        return []
    return [round(one, 4) for one in (min(found), statistics.median(found), max(found))]


def main() -> None:
    """Run what the file of rows lacks, and add to it."""
    parser = parser_of(__doc__, HERE / "results.jsonl")
    parser.add_argument("--errors", action="store_true", help="trace every value, too")
    options = parser.parse_args()
    results = Results(options.results, options.only or ())
    for case in results.waiting(CASES):
        before, after = planned(case, **{YES_NO: True}), planned(case)
        row: dict[str, Any] = {
            "name": case.name,
            "device": case.device,
            YES_NO: figures(*before),
            WHOLE: figures(*after),
            "load": os.getloadavg()[0],
            "versions": installed().versions,
            "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        row["gain"] = round(row[WHOLE]["tokens_per_s"] / row[YES_NO]["tokens_per_s"] - 1, 4)
        if options.errors:
            row["errors"] = list(errors(case, after[0]))
        print(json.dumps({name: row[name] for name in row if name != "versions"}), flush=True)
        results.add(row)


if __name__ == "__main__":
    main()
