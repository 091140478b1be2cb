"""Peers side by side in one run: what each picks for the same job, and how fast that trains.

    scripts/peers                                         # once: a venv of their own
    .venv-peers/bin/python benchmarks/search/peers/run.py --limit 1130MiB

1. Each tool searches, as its documentation says, on the quickstart's model and data under the same
   memory limit; its seconds are those of the whole command.
2. Every pick is trained by one neutral harness (`harness.py`), in turns, `ROUNDS` times: tokens/s
   over one epoch of the same rows, peak memory, sequences in an optimizer step. A pick that leaves
   another global batch is shown as it is, and once more with the accumulation that comes nearest to
   the job's.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import GLOBAL_BATCH, ROOT

from autotune.units import format_bytes, parse_bytes

HERE = Path(__file__).parent
ROUNDS, ROWS = 3, 320
WALL_S = 480
PACKAGES = ("torch", "transformers", "trl", "accelerate", "deepspeed", "lightning", "optuna")
KNOBS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "attn_implementation",
    "loss_type",
    "train_sampling_strategy",
    "optim",
)


def called(command: list[str], **environment: str) -> tuple[dict[str, Any] | None, str, float]:
    """(the answer of a script, the end of what it said, its seconds)."""
    began = time.perf_counter()
    path = os.pathsep.join([str(ROOT), str(HERE)])
    folders = [str(HERE / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    own = os.pathsep.join(folders)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=WALL_S,
            env={
                **os.environ,
                "PATH": own,
                "PYTHONPATH": path,
                "TOKENIZERS_PARALLELISM": "false",
                **environment,
            },
        )
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        said, code = f"ended after {WALL_S} s without a result", -1
    seconds = time.perf_counter() - began
    answers = [line[7:] for line in said.splitlines() if line.startswith("ANSWER ")]
    found = json.loads(answers[-1]) if answers and code == 0 else None
    errors = [line for line in said.splitlines() if "Error:" in line] or [said.strip()[-300:]]
    return found, f"exit code {code}; {errors[-1].strip()}", seconds


# -- the searches


def autotune(limit: int, scratch: Path) -> dict[str, Any]:
    """`autotune run`, whole: estimates, probes, verification."""
    job, out = ROOT / "examples" / "quickstart" / "job.yaml", scratch / "run"
    command = [sys.executable, "-m", "autotune", "run", str(job), "--out", str(out), "--json"]
    command += ["--set", f"devices.memory={limit}", "--no-history"]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AUTOTUNE_CACHE": str(scratch / "cache")},
    )
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        return {"problem": done.stderr[-400:], "search_s": seconds}
    said = json.loads(done.stdout)
    fields = {name: said["knobs"][name] for name in KNOBS if name in said["knobs"]}
    return {"fields": fields, "search_s": seconds, "probes": said["probes"]}


def trl_defaults(limit: int, scratch: Path) -> dict[str, Any]:
    """What TRL does when nobody chooses: 8 a step, no accumulation."""
    fields = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    return {"fields": fields, "search_s": 0.0}


def script(name: str, *arguments: str) -> Any:
    """A tool whose search is a script here."""

    def search(limit: int, scratch: Path) -> dict[str, Any]:
        command = [sys.executable, str(HERE / name), str(limit), str(scratch), *arguments]
        found, said, seconds = called(command)
        if found is None:
            return {"problem": said, "search_s": seconds}
        return {"fields": found["fields"], "search_s": seconds}

    return search


def deepspeed(limit: int, scratch: Path) -> dict[str, Any]:
    """DeepSpeed's autotuner over its ZeRO stages and micro-batches, on one process."""
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "torch_adam": True}},
        "autotuning": {
            "enabled": True,
            "fast": True,
            "max_train_batch_size": GLOBAL_BATCH,
            "results_dir": str(scratch / "results"),
            "exps_dir": str(scratch / "exps"),
            "arg_mappings": {
                "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
                "gradient_accumulation_steps": "--gradient_accumulation_steps",
            },
        },
    }
    file = scratch / "ds.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    launcher = Path(sys.executable).parent / "deepspeed"
    command = [str(launcher), "--autotuning", "tune", "--num_nodes", "1", "--num_gpus", "1"]
    command += [str(HERE / "deepspeed_script.py"), "--deepspeed", str(file)]
    command += ["--output_dir", str(scratch / "out")]
    environment = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
    environment |= {"LIMIT_BYTES": str(limit), "TRL_EXPERIMENTAL_SILENCE": "1"}
    _, said, seconds = called(command, **environment)
    best = scratch / "results" / "ds_config_optimal.json"
    if not best.exists():
        return {"problem": last_error(scratch) or said, "search_s": seconds}
    chosen = json.loads(best.read_text(encoding="utf-8"))
    fields = {
        "per_device_train_batch_size": chosen["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": chosen.get("gradient_accumulation_steps", 1),
    }
    stage = chosen.get("zero_optimization", {}).get("stage")
    made = len(list((scratch / "exps").glob("*.json"))) if (scratch / "exps").exists() else None
    return {"fields": fields, "search_s": seconds, "zero_stage": stage, "probes": {"total": made}}


def last_error(scratch: Path) -> str | None:
    """What DeepSpeed's experiments said last; its autotuner itself only says that it ended."""
    logs = sorted((scratch / "results").rglob("stderr.log"))
    lines = [one for log in logs for one in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error:" in line]
    return f"exit code 0; its last experiment: {errors[-1].strip()}" if errors else None


def deepspeed_at_large(limit: int, scratch: Path) -> dict[str, Any]:
    """The same with room for what it measures first: ZeRO-3, whose default bucket is 2 GB."""
    return deepspeed(max(limit, ROOMY), scratch)


ROOMY = 16 * 2**30
TOOLS = {
    "autotune": autotune,
    "TRL's defaults": trl_defaults,
    "transformers auto_find_batch_size": script("transformers_pick.py"),
    "Lightning BatchSizeFinder, power": script("lightning_pick.py", "power"),
    "Lightning BatchSizeFinder, binsearch": script("lightning_pick.py", "binsearch"),
    "DeepSpeed autotuning": deepspeed,
    "DeepSpeed autotuning, 16 GiB": deepspeed_at_large,
}


# -- the harness


def at_global_batch(fields: dict[str, Any]) -> dict[str, Any]:
    """The same micro-batch with the accumulation that comes nearest to the job's batch."""
    size = fields["per_device_train_batch_size"]
    return {**fields, "gradient_accumulation_steps": max(round(GLOBAL_BATCH / size), 1)}


def timed(fields: dict[str, Any], limit: int, scratch: Path, rows: int) -> dict[str, Any]:
    """One pick through the harness."""
    arguments = [json.dumps(fields), str(rows), str(limit), str(scratch)]
    found, said, _ = called([sys.executable, str(HERE / "harness.py"), *arguments])
    return found or {"outcome": "crash", "said": said}


def compare(
    picks: dict[str, dict[str, Any]], limit: int, scratch: Path, count: int, rounds: int
) -> dict[str, Any]:
    """Every pick in turns."""
    asked = {}
    for name, pick in picks.items():
        if "fields" not in pick:
            continue
        asked[name] = pick["fields"]
        nearest = at_global_batch(pick["fields"])
        if nearest != pick["fields"]:
            asked[f"{name}, accumulation by hand"] = nearest
    # Tools that picked the same are timed once, for all of them.
    rows: dict[str, list[Any]] = {_same(fields): [] for fields in asked.values()}
    for turn in range(rounds):
        for key in list(rows) if turn % 2 else list(rows)[::-1]:
            rows[key].append(timed(json.loads(key), limit, scratch / "out", count))
            print(turn, key, json.dumps(rows[key][-1])[:160], flush=True)
    return {name: {"fields": fields, "runs": rows[_same(fields)]} for name, fields in asked.items()}


def _same(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


# -- the table


def table(result: dict[str, Any]) -> str:
    """`peers.md`."""
    about, ours = result["about"], result["timed"].get("autotune")
    base = _speed(ours) if ours else None
    lines = [
        "# Peers, side by side in one run",
        "",
        f"{about['device']}, {about['threads']} cores, {about['date'][:10]}; "
        + ", ".join(f"{name} {about[name]}" for name in PACKAGES if name in about)
        + f". Limit {format_bytes(about['limit_bytes'])}; the job asks for {GLOBAL_BATCH} "
        f"sequences an optimizer step. {about.get('rounds', ROUNDS)} runs each, in turns: one "
        f"epoch over the same {about.get('rows', ROWS)} rows. `{about['command']}`",
        "",
        "| pick of | search | micro-batch x accumulation | kept the batch? | tokens/s (range) "
        "| against autotune | peak |",
        "|---" * 7 + "|",
    ]
    for name, one in result["timed"].items():
        lines.append(_line(name, one, result["picks"], base))
    for name, pick in result["picks"].items():
        if "problem" in pick:
            seconds = f"{pick['search_s']:.0f} s"
            lines.append(
                f"| {name} | {seconds} | found nothing: {_one_line(pick['problem'])} ||||||"
            )
    return "\n".join(lines) + "\n"


def _speed(one: dict[str, Any]) -> float | None:
    speeds = [run["tokens_per_s"] for run in one["runs"] if run["outcome"] == "ok"]
    return statistics.median(speeds) if speeds else None


def _line(name: str, one: dict[str, Any], picks: dict[str, Any], base: float | None) -> str:
    fields = one["fields"]
    batch = f"{fields['per_device_train_batch_size']} x {fields['gradient_accumulation_steps']}"
    pick = picks.get(name)
    probes = (pick or {}).get("probes", {}).get("total")
    search = "" if pick is None else f"{pick['search_s']:.0f} s"
    search += f", {probes} probes" if probes else ""
    speed = _speed(one)
    ended = [run for run in one["runs"] if run["outcome"] == "ok"]
    if speed is None:
        what = ", ".join(run["outcome"] for run in one["runs"])
        return f"| {name} | {search} | {batch} | | {what} | | |"
    product = fields["per_device_train_batch_size"] * fields["gradient_accumulation_steps"]
    kept = "yes" if product == GLOBAL_BATCH else f"no: {product}"
    speeds = [run["tokens_per_s"] for run in ended]
    ratio = "" if base is None else f"{speed / base:.2f}"
    peak = format_bytes(max(run["peak_memory_bytes"] for run in ended))
    failed = len(one["runs"]) - len(ended)
    note = f"; {failed} of {len(one['runs'])} ran out of memory" if failed else ""
    return (
        f"| {name} | {search} | {batch} | {kept} | {speed:.0f} ({min(speeds):.0f} to "
        f"{max(speeds):.0f}){note} | {ratio} | {peak} |"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[-200:].replace("|", "/")


def main() -> None:
    """Search, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=parse_bytes, default=parse_bytes("1130MiB"))
    parser.add_argument("--only", action="append", choices=TOOLS)
    parser.add_argument("--out", type=Path, default=HERE / "peers.json")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the epoch that is timed")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--timing", action="store_true", help="time the known picks again")
    options = parser.parse_args()
    if not options.table:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["benchmarks/search/peers/run.py", *sys.argv[1:]]),
            "device": platform.processor() or platform.machine(),
            "threads": len(os.sched_getaffinity(0)),
            "limit_bytes": options.limit,
            "rows": options.rows,
            "rounds": options.rounds,
            **{name: version(name) for name in PACKAGES if find_spec(name)},
        }
        picks = {}
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            if options.timing:
                picks = json.loads(options.out.read_text(encoding="utf-8"))["picks"]
            for name in () if options.timing else options.only or TOOLS:
                scratch = Path(folder, str(len(picks)))
                scratch.mkdir()
                picks[name] = TOOLS[name](options.limit, scratch)
                print(name, json.dumps(picks[name])[:300], flush=True)
            result = {
                "about": about,
                "picks": picks,
                "timed": compare(picks, options.limit, Path(folder), options.rows, options.rounds),
            }
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = table(json.loads(options.out.read_text(encoding="utf-8")))
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
