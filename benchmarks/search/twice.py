"""One job tuned again and again, on the same machine: do the answers agree within the noise they
state, and how many probes did it take before there were estimates?

    python benchmarks/search/twice.py            # about 8 minutes on an idle machine

Three runs of the quickstart's job: two as a user makes them, one by TPE (`run_with.py`), which
is what searched before estimates did. None knows of another (`--no-history`). Then every pick is
probed again, in turns (`autotune probe`): compared on the same machine at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
JOB = ROOT / "examples" / "quickstart" / "job.yaml"
RUNS = ("estimates", "estimates", "tpe")
AUTOTUNE = ("autotune",)
TURNS = 3
PACKAGES = ("torch", "transformers", "trl", "optuna")
SHOWN = ("gradient_checkpointing", "attn_implementation", "loss_type", "train_sampling_strategy")


def autotune(*arguments: str, cache: Path, program: Sequence[str] = AUTOTUNE) -> dict[str, Any]:
    """What a command answers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AUTOTUNE_CACHE": str(cache)}
    command = [sys.executable, "-m", *program, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def probe(knobs: dict[str, Any], cache: Path) -> dict[str, Any]:
    """One probe of a pick."""
    sets = [part for name, value in knobs.items() for part in ("--set", f"{name}={_word(value)}")]
    measured: dict[str, Any] = autotune("probe", str(JOB), *sets, cache=cache)["measurement"]
    return measured


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def line(name: str, run: dict[str, Any], again: Sequence[float]) -> str:
    """A row of the table."""
    knobs, measured, verified = run["knobs"], run["measurement"], run["verification"]
    pick = f"{knobs['per_device_train_batch_size']} x {knobs['gradient_accumulation_steps']} "
    pick += ", ".join(f"{_word(knobs[one])}" for one in SHOWN)
    noise = 100 * (measured["relative_uncertainty"] or 0.0)
    ratio = verified["speed_against_promise"] or 0.0
    return (
        f"| {name} | {run['probes']['total']} | {pick} | {measured['tokens_per_s']:.0f} "
        f"(+-{noise:.1f}%) | {100 * run['repeatability']['sd']:.1f}% "
        f"| {'yes' if verified['verified'] else 'no'}, {100 * ratio:.0f}% "
        f"| {run['seconds']:.0f} s | {statistics.median(again):.0f} "
        f"({min(again):.0f} to {max(again):.0f}) |"
    )


def main() -> None:
    """Run, probe the picks again, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", choices=RUNS, nargs="+", default=RUNS, help="samplers, in turn")
    parser.add_argument("--turns", type=int, default=TURNS, help="probes of each pick")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--results", type=Path, default=HERE / "twice.json")
    options = parser.parse_args()
    sets = [part for one in options.set for part in ("--set", one)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="twice-") as folder:
        cache = Path(folder, "cache")
        for number, sampler in enumerate(options.runs):
            out = str(Path(folder, str(number)))
            ours = sampler == RUNS[0]
            program = (*AUTOTUNE, "run") if ours else ("benchmarks.search.run_with", sampler)
            flags = [str(JOB), *sets, "--out", out, "--no-history"]
            runs.append(autotune(*flags, cache=cache, program=program))
            print(sampler, runs[-1]["probes"], runs[-1]["stop_reason"], flush=True)
        again: list[list[float]] = [[] for _ in runs]
        for turn in range(options.turns):
            for number in range(len(runs)) if turn % 2 else range(len(runs))[::-1]:
                measured = probe(runs[number]["knobs"], cache)
                again[number].append(measured["tokens_per_s"])
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/search/twice.py",
        "threads": len(os.sched_getaffinity(0)),
        **{name: version(name) for name in PACKAGES},
    }
    rows = [
        {"sampler": sampler, "run": run, "probed_again": speeds}
        for sampler, run, speeds in zip(options.runs, runs, again, strict=True)
    ]
    text = json.dumps({"about": about, "runs": rows}, indent=1, sort_keys=True)
    options.results.write_text(text + "\n", encoding="utf-8")
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    lines = [
        "# One job tuned three times",
        "",
        f"{head}",
        "",
        "| run | probes | pick | tokens/s as recommended | probes differ by | verified, of the "
        "promised speed | took | all picks probed again in turns: tokens/s |",
        "|---" * 8 + "|",
        *(
            line(f"{number + 1}: {sampler}", run, speeds)
            for number, (sampler, run, speeds) in enumerate(
                zip(options.runs, runs, again, strict=True)
            )
        ),
    ]
    options.results.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
