"""What a recommendation is worth: `autotune run`'s pick beside what people use, trained in turns.

    scripts/gpu.sh outcome [OUT] [--case full] [--case 7b-lora] [--minutes 9] [--rehearse]

The cases are those of `scripts/gpu_smoke.py`. Of each:

1. `autotune run`, whole: estimates, probes, verification. Its pick is what its bundle holds: the
   fields of `sft_config.yaml` and the variables of `launch.sh`.
2. What people use: TRL's defaults as they are, and with the accumulation that keeps the job's
   batch; what transformers' `auto_find_batch_size` comes to; a configuration written by hand
   (`BY_HAND`, by us, before anything was measured).
3. All picks are trained by one harness (`harness.py`) for one epoch of the same rows, in turns,
   three times, within the same memory.

OUT gets `outcome_rows.jsonl` (a row as soon as it is known), `outcome_machine.json`, the report and
the logs of each run, and `outcome_table.md`. `--minutes`: no training starts after that.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from autotune.facts.data import draw_lengths
from autotune.process.importing import import_without_cuda
from autotune.units import parse_bytes
from benchmarks.outcome.table import table
from scripts.gpu_smoke import (
    CASES,
    MODELS,
    TINY_JOB,
    as_json,
    autotune,
    default_out,
    describe_machine,
    logs_of,
)

# Asking whether there is a GPU would start CUDA, which then works in no forked child.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
import_without_cuda(["torch", "benchmarks.outcome.harness"])
from benchmarks.outcome import harness  # noqa: E402

ROWS = "outcome_rows.jsonl"
ROUNDS, OPTIMIZER_STEPS = 3, 10
MOST_SECONDS = 90.0
"""Of one training."""
LORA = {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_target_modules": ["all-linear"]}
BY_HAND = {
    "full": {"per_device_train_batch_size": 4, "train_sampling_strategy": "group_by_length"},
    "7b-lora": {"per_device_train_batch_size": 4, "train_sampling_strategy": "group_by_length"},
}
PLACES = {"model_name_or_path", "output_dir"}
"""Fields of a bundle that name files."""


class Outcome:
    """One case: its job, its trainings, and the file that the rows go to."""

    def __init__(self, case: str, options: argparse.Namespace, scratch: Path):
        self.case, self.scratch, self.out = case, scratch, options.out
        shape, job = CASES[case]
        if options.rehearse:
            shape, job = "tiny", {**TINY_JOB, "tuning": job["tuning"]}
        dtype = job.get("fixed", {}).get("dtype", "float32")
        model = scratch / "model" / "config.json"
        model.parent.mkdir()
        model.write_text(json.dumps({**MODELS[shape], "dtype": dtype}), encoding="utf-8")
        self.job = {"model": str(model), **job}
        limit = job["devices"].get("memory")
        lengths = draw_lengths(job["dataset"]["lengths"], OPTIMIZER_STEPS * self.batch)
        random.Random(0).shuffle(lengths)
        (scratch / "out").mkdir()
        self.training = harness.Training(
            model.parent, lengths, limit and parse_bytes(limit), scratch / "out", MOST_SECONDS
        )
        self.recipe = {
            "max_length": job["max_length"],
            "dtype": dtype,
            **(LORA if job["tuning"] == "lora" else {}),
        }

    @property
    def batch(self) -> int:
        """Sequences that the job asks for in each optimizer step."""
        return int(self.job["global_batch_size"])

    def write(self, **row: Any) -> None:
        """One more row."""
        with (self.out / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": self.case, **row}, default=str) + "\n")
        print("outcome:", json.dumps({"case": self.case, **row}, default=str)[:300], flush=True)

    def with_batch(self, **fields: Any) -> dict[str, Any]:
        """The same micro-batch with the accumulation that comes nearest to the job's batch."""
        steps = max(round(self.batch / fields["per_device_train_batch_size"]), 1)
        return {**fields, "gradient_accumulation_steps": steps}

    def picks(self) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
        """(name, fields, environment) of all that is compared."""
        yield from self.recommended()
        yield "TRL's defaults", self.recipe, {}
        defaults = self.with_batch(**self.recipe, per_device_train_batch_size=8)
        yield "TRL's defaults, the job's batch", defaults, {}
        yield "by hand", self.with_batch(**self.recipe, **BY_HAND[self.case]), {}
        whole = {**self.recipe, "per_device_train_batch_size": self.batch}
        found, seconds = harness.find_batch_size(self.training, whole)
        self.write(row="search", pick="auto_find_batch_size", seconds=seconds, found=found)
        if found["outcome"] == "ok":
            size = found["micro_batch"]
            fields = self.with_batch(**self.recipe, per_device_train_batch_size=size)
            yield "auto_find_batch_size, accumulation by hand", fields, {}

    def recommended(self) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
        """What `autotune run` comes to; nothing where it recommends nothing."""
        file, folder = self.scratch / "job.yaml", self.scratch / "run"
        file.write_text(json.dumps(self.job), encoding="utf-8")
        began = time.monotonic()
        printed, said = autotune("run", str(file), "--out", str(folder), "--json")
        seconds = time.monotonic() - began
        self.write(row="search", pick="autotune", seconds=seconds, found=as_json(printed))
        with (self.out / "outcome_log.txt").open("a", encoding="utf-8") as log:
            log.write(f"===== {self.case}\n{said}{logs_of(folder)}")
        report, _ = autotune("report", str(folder), "--json")
        (self.out / f"outcome_report_{self.case}.json").write_text(report, encoding="utf-8")
        if (folder / "bundle" / "launch.sh").is_file():
            text = (folder / "bundle" / "sft_config.yaml").read_text(encoding="utf-8")
            fields = {k: v for k, v in yaml.safe_load(text).items() if k in harness.FIELDS - PLACES}
            yield "autotune", fields, launch_environment(folder / "bundle" / "launch.sh")


def launch_environment(script: Path) -> dict[str, str]:
    """The variables that a bundle's launch script sets where its user has not."""
    pattern = r'^export (\w+)="\$\{\1-(.*)\}"$'
    return dict(re.findall(pattern, script.read_text(encoding="utf-8"), re.MULTILINE))


def compare(outcome: Outcome, ends: float) -> None:
    """Train every pick in turns."""
    picks = list(outcome.picks())
    for turn in range(ROUNDS):
        for name, fields, environment in picks if turn % 2 else picks[::-1]:
            if time.monotonic() > ends:
                print("outcome: the time is up", flush=True)
                return
            answer = harness.train(outcome.training, fields, environment)
            outcome.write(
                row="training",
                pick=name,
                turn=turn,
                fields=fields,
                environment=environment,
                batch=outcome.batch,
                **answer,
            )


def main() -> int:
    """Search, train, write the table."""
    parser = argparse.ArgumentParser(description="Train autotune's pick beside what people use.")
    parser.add_argument("out", type=Path, nargs="?", help="folder for the results")
    parser.add_argument("--case", choices=BY_HAND, action="append", help="in place of both")
    parser.add_argument("--minutes", type=float, default=60.0, help="no training starts after")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with something tiny")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    options.out = (options.out or default_out(options.rehearse, "outcome")).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    machine = options.out / "outcome_machine.json"
    describe_machine(machine, "outcome", options.rehearse)
    for case in options.case or BY_HAND:
        with tempfile.TemporaryDirectory(prefix="autotune-outcome-") as scratch:
            outcome = Outcome(case, options, Path(scratch))
            compare(outcome, ends)
    text = table(options.out / ROWS, json.loads(machine.read_text()))
    (options.out / "outcome_table.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
