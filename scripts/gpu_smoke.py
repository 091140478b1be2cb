"""The measurement `smoke`: `autotune run` on a GPU to a verified bundle.

    python scripts/gpu_smoke.py [OUT] [--case NAME]... [--rehearse]

writes into OUT

    smoke_NAME.json         what `autotune run --json` printed
    smoke_probes.jsonl      one line a probe of each run, as the study holds it
    smoke_machine.json      device, versions, command, date, nvidia-smi's own words
    smoke_log.txt           what the runs said, and the logs of what went wrong

and ends with exit code 0 if each run recommended a verified bundle. Whether something runs out of
memory is left to the search, whose estimates avoid it: the measurement `memory` probes beyond the
limit on purpose. `--rehearse`: on the CPU with something tiny.

The cases: `full` and `lora` (the default) of the Qwen2.5-0.5B shape, rows of 1 to 2048 tokens, in
20 GiB, so that micro-batch and checkpointing have to be chosen; `one-length`: rows of 4096 tokens
each, which keep cuDNN's attention; `7b-lora`: the Qwen2.5-7B shape with bfloat16 weights. Models
are bare configs with random weights, and data are lengths alone: nothing has to be on the machine.
"""

import argparse
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_memory.cases import MODELS  # noqa: E402

RUN_LIMIT_S = 300.0
"""A run that takes longer is ended as by Ctrl-C, so that its record is written all the same."""
LOG_END_BYTES = 20_000
GIB = 2**30

JOB = {
    "tuning": "full",
    "dataset": {"lengths": {"max": 2048, "p50": 300, "p99": 1500}},
    "global_batch_size": 32,
    "max_length": 2048,
    "devices": {"kind": "cuda", "memory": "20GiB"},
    "budget": {"probes": 10, "probe_minutes": 4.0, "minutes": 1.5},
    # Each of these doubles what is estimated first.
    "fixed": {
        "use_liger_kernel": False,
        "activation_offloading": False,
        "dataloader_num_workers": 0,
        "optim": "adamw_torch_fused",
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("qwen2.5-0.5b", JOB),
    "lora": ("qwen2.5-0.5b", {**JOB, "tuning": "lora"}),
    "one-length": (
        "qwen2.5-0.5b",
        {**JOB, "dataset": {"lengths": {"max": 4096}}, "max_length": 4096},
    ),
    "7b-lora": (
        "qwen2.5-7b",
        {
            **JOB,
            "tuning": "lora",
            "global_batch_size": 16,
            "devices": {"kind": "cuda", "memory": "76GiB"},
            "budget": {**JOB["budget"], "probes": 4},
            "fixed": {**JOB["fixed"], "dtype": "bfloat16"},
        },
    ),
}
TINY_JOB = {
    "dataset": {"lengths": {"max": 128, "p50": 40, "p99": 100, "rows": 500}},
    "global_batch_size": 8,
    "max_length": 128,
    "devices": {"kind": "cpu"},
    "budget": {"probes": 3, "probe_minutes": 1.0, "minutes": 1.0},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run autotune on a GPU to verified bundles.")
    parser.add_argument("out", type=Path, nargs="?", help="folder for the results")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with something tiny")
    parser.add_argument("--case", choices=CASES, action="append", help="in place of full and lora")
    arguments = parser.parse_args()
    out = arguments.out or default_out(arguments.rehearse, "smoke")
    out.mkdir(parents=True, exist_ok=True)
    (out / "smoke_log.txt").unlink(missing_ok=True)
    began = time.monotonic()
    describe_machine(out / "smoke_machine.json", "smoke", arguments.rehearse)
    with tempfile.TemporaryDirectory(prefix="autotune-smoke-") as scratch:
        runs = [
            smoke(name, Path(scratch), out, arguments.rehearse)
            for name in arguments.case or ("full", "lora")
        ]
    write_probes(out / "smoke_probes.jsonl", runs)
    problems = [problem for run in runs for problem in problems_of(run)]
    print(table(runs))
    print(f"{time.monotonic() - began:.0f} s in all; results in {out}")
    print("smoke: " + ("; ".join(problems) or "ok"))
    return 1 if problems else 0


def default_out(rehearse: bool, measurement: str) -> Path:
    """Recorded results are kept in the repository; a rehearsal's are not."""
    if rehearse:
        return ROOT / "runs" / f"gpu-{measurement}-rehearsal-{time.strftime('%Y%m%d-%H%M%S')}"
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    return ROOT / "benchmarks" / "recorded" / f"gpu-{measurement}-{today}"


def smoke(case: str, scratch: Path, out: Path, rehearse: bool) -> dict[str, Any]:
    """Run autotune once; what it printed and what its study holds."""
    shape, job = CASES[case]
    if rehearse:
        shape, job = "tiny", {**TINY_JOB, "tuning": job["tuning"]}
    model = scratch / shape / "config.json"
    model.parent.mkdir(exist_ok=True)
    weights = {"dtype": job.get("fixed", {}).get("dtype", "float32")}
    model.write_text(json.dumps({**MODELS[shape], **weights}), encoding="utf-8")
    file = scratch / f"{case}.yaml"  # JSON is YAML
    file.write_text(json.dumps({"model": str(model), **job}), encoding="utf-8")
    folder = scratch / f"run-{case}"
    printed, said = autotune("run", str(file), "--out", str(folder), "--json")
    (out / f"smoke_{case}.json").write_text(printed, encoding="utf-8")
    report, complaint = autotune("report", str(folder), "--json")
    with (out / "smoke_log.txt").open("a", encoding="utf-8") as log:
        log.write(f"===== {case}\n{said}{complaint}{logs_of(folder)}")
    shutil.rmtree(folder, ignore_errors=True)  # gigabytes of weights
    return {"case": case, "result": as_json(printed), "report": as_json(report), "said": said}


def autotune(*arguments: str) -> tuple[str, str]:
    """(stdout, stderr) of an autotune command, ended in time."""
    command = [sys.executable, "-m", "autotune", *arguments]
    print("smoke:", shlex.join(["autotune", *arguments]), flush=True)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            return process.communicate(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            return process.communicate()


def as_json(text: str) -> dict[str, Any]:
    """What a command printed; empty where it failed before it printed."""
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return data


def logs_of(run: Path) -> str:
    """The ends of the logs that say why something failed."""
    parts = []
    for log in [
        run / "server.log",
        *sorted(run.glob("survey/stderr.log")),
        *sorted(run.glob("probes/*/stderr.log")),
        *sorted(run.glob("verification/**/*.log")),
    ]:
        if log.is_file() and log.stat().st_size:
            text = log.read_bytes()[-LOG_END_BYTES:].decode("utf-8", errors="replace")
            parts.append(f"----- {log.relative_to(run)}\n{text.rstrip()}\n")
    return "".join(parts)


def write_probes(path: Path, runs: list[dict[str, Any]]) -> None:
    """One line a probe."""
    rows = [{"run": run["case"], **probe} for run in runs for probe in probes_of(run)]
    lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def probes_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    probes: list[dict[str, Any]] = run["report"].get("probes", [])
    return probes


def outcomes(run: dict[str, Any]) -> list[str]:
    return [p["measurement"]["outcome"] for p in probes_of(run) if p["measurement"] is not None]


def problems_of(run: dict[str, Any]) -> list[str]:
    """What speaks against a run."""
    result = run["result"]
    if not result:
        last = run["said"].strip().splitlines()[-1:] or ["it said nothing"]
        return [f"{run['case']}: no result: {last[0]}"]
    if result["outcome"] != "recommended":
        return [f"{run['case']}: {result['outcome']}: {result['stop_reason']}"]
    if not result["verified"]:
        return [f"{run['case']}: not verified: {(result['verification'] or {}).get('reason')}"]
    return []


def describe_machine(path: Path, measurement: str, rehearse: bool) -> None:
    """What a recorded result must come with."""
    machine = {
        "schema": 1,
        "measurement": measurement,
        "rehearsal": rehearse,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["scripts/gpu.sh", measurement, *sys.argv[1:]]),
        "revision": said_by("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "autotune_env": as_json(autotune("doctor", "--json")[0]),
        "torch": as_json(said_by(sys.executable, "-c", TORCH) or ""),
        "nvidia_smi": said_by("nvidia-smi"),
        "nvidia_smi_query": said_by(
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit",
            "--format=csv",
        ),
        "cuda_variables": {
            k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "PYTORCH_"))
        },
    }
    path.write_text(json.dumps(machine, indent=1, sort_keys=True) + "\n", encoding="utf-8")


TORCH = """
import json, torch
print(json.dumps({"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]}))
"""


def said_by(*command: str) -> str | None:
    """What a command prints; None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def table(runs: list[dict[str, Any]]) -> str:
    lines = [f"{'run':11}{'outcome':14}{'verified':10}{'probes':>7}{'ok':>4}{'oom':>5}"]
    lines[0] += f"{'other':>7}{'tokens/s':>11}{'peak GiB':>10}{'run s':>8}"
    for run in runs:
        result, seen = run["result"], outcomes(run)
        measured = result.get("measurement") or {}
        ok, oom = seen.count("ok"), seen.count("oom")
        lines.append(
            f"{run['case']:11}{result.get('outcome', 'failed'):14}"
            f"{'yes' if result.get('verified') else 'no':10}"
            f"{len(seen):7}{ok:4}{oom:5}{len(seen) - ok - oom:7}"
            f"{number(measured.get('tokens_per_s'), 1):>11}"
            f"{number(measured.get('peak_memory_bytes'), GIB, 2):>10}"
            f"{number(result.get('seconds'), 1):>8}"
        )
    return "\n".join(lines)


def number(value: float | None, unit: float, digits: int = 0) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
