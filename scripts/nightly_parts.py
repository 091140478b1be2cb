"""The parts of scripts/nightly, and what runs them.

A benchmark's part makes one row of it, in a folder of its own: whether it still runs, not what it
shows. The committed rows stay as they are. Those that measure a GPU rehearse.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.guards import GUARDS  # noqa: E402

LOGS = ROOT / "runs" / "nightly"
MOST_S = 6 * 3600
"""A part that takes longer is ended."""
FUZZED = "tests/unit/test_fuzz.py tests/unit/test_fuzz_readers.py "
FUZZED += "tests/unit/run/test_damaged_runs.py::test_damage_at_random_is_answered_in_words"

TESTS = {
    **{f"tests/{guard}": f"scripts/test --guard {guard}" for guard in GUARDS},
    # 2000 executions a test, 20,000 together.
    "fuzz": "env AUTOTUNE_FUZZ=2000 python -m pytest -q -n 2 --dist load -p no:cacheprovider "
    f"-o faulthandler_timeout=7200 {FUZZED}",
    "vulnerabilities": "scripts/vulnerabilities",
}
"""Part -> command. `python` is .venv's, {out} a folder for what it makes."""

VIRTUAL = "scripts/virtual_gpu --kind a100-80gb"
BENCHMARKS = {
    "attention_shapes": "scripts/gpu.sh attention {out} --device cpu",
    "checkpointing/virtual": f"{VIRTUAL} -- python benchmarks/checkpointing/virtual.py "
    "--only every_2 --truth {out}/truth.jsonl --results {out}/rows.jsonl",
    "closed_form": "python benchmarks/closed_form/run.py benchmarks/closed_form/job.yaml "
    "--device h200 --set model=benchmarks/formula_first/model/config.json "
    "--set fixed.gradient_checkpointing=true --set fixed.padding_free=false "
    "--set fixed.attn_implementation=sdpa --results {out}/rows.jsonl",
    "checkpointing": "python -m benchmarks.checkpointing.run --only '0.5B full' "
    "--results {out}/rows.jsonl",
    "base_dtype": "python benchmarks/base_dtype/run.py --only 'base in bfloat16, seed 1' "
    "--results {out}/rows.jsonl",
    "estimate_exactness": "python benchmarks/estimate_exactness/run.py "
    "--only 'qwen2 lora-all-8 float32' --results {out}/rows.jsonl",
    "estimate_exactness/four_bit": "python benchmarks/estimate_exactness/four_bit.py "
    "--only '4-bit nested llama lora-all-16 float32' --results {out}/rows.jsonl",
    "estimate_exactness/eight_bit": "python benchmarks/estimate_exactness/eight_bit.py "
    "--only 'qwen2 full float32 checkpointing-off nll adamw_8bit' --results {out}/rows.jsonl",
    "estimate_rules": "python benchmarks/estimate_rules/run.py --results {out}/rows.jsonl "
    "--only 'qwen2 full bfloat16 checkpointing-off chunked_nll sdpa padded adamw_torch_fused'",
    "first_line": "python -m benchmarks.first_line.run --only 0.5b-full --results {out}/rows.jsonl",
    "formula_first": "python benchmarks/formula_first/run.py benchmarks/formula_first/job.yaml "
    "--set devices.count=2 --set global_batch_size=2 --set fixed.distributed_type=FSDP "
    "--results {out}/rows.jsonl",
    "gpu_memory": "scripts/gpu.sh memory {out} --rehearse --minutes 0.5",
    "gpu_memory/again": "python -m benchmarks.gpu_memory.again "
    "benchmarks/recorded/gpu-memory-h200-2026-11-26 --device h200 --only qwen2.5-0.5b-full-512 "
    "--predictions benchmarks/recorded/predictions-memory-h100-2026-11-26.jsonl "
    "--results {out}/rows.jsonl",
    "gpu_smoke": "scripts/gpu.sh smoke {out} --rehearse --case full",
    "host_memory": "python benchmarks/host_memory/run.py --repeats 1 --lengths 4 "
    "--results {out}/rows.jsonl",
    "outcome": "scripts/gpu.sh outcome {out} --rehearse --case full --minutes 2",
    "peers": "python benchmarks/peers/run.py --only 'bfloat16 checkpointing-on nll "
    "adamw_torch_fused sdpa padded 1x384' --results {out}/rows.jsonl",
    "peers/published": "python benchmarks/peers/published.py --out {out}/published.md",
    "plan_time": "python -m benchmarks.plan_time.run --only '0.36B SFT' --results {out}/rows.jsonl",
    "plan_time/agreement": "python -m benchmarks.plan_time.agreement "
    "--only '0.1B SFT on rtx-4090' --results {out}/rows.jsonl",
    "public_tables": "python benchmarks/public_tables/run.py "
    "--only 'Qwen2.5-0.5B, ZeRO-2, 8 devices' --results {out}/rows.jsonl",
    "published_runs": "python benchmarks/published_runs/run.py --only peft_bloomz-7b1 "
    "--results {out}/rows.jsonl",
    "rollout_exactness": "python benchmarks/rollout_exactness/run.py grpo --only 'model=qwen3 "
    "beta=0.04 lora=False checkpointing=False bf16=False' --results {out}/rows.jsonl",
    "scale": "python -m benchmarks.scale.run --only 'lanes: 8 GPUs, usual, 2 at once' "
    "--results {out}/rows.jsonl",
    "search/record": "scripts/gpu.sh grid {out} --minutes 0 --set devices.kind=cpu "
    "--set global_batch_size=1",
    "search/replay": "python benchmarks/search/replay.py --only autotune --seeds 1 "
    "--out {out}/results.md",
    "search/twice": "python benchmarks/search/twice.py --runs estimates tpe --turns 1 "
    "--set budget.probes=2 --results {out}/twice.json",
    "search/peers": 'python benchmarks/search/peers/run.py --only "TRL\'s defaults" --rows 16 '
    "--rounds 1 --out {out}/peers.json",
    "service/load": "python -m benchmarks.service.load --minutes 0 --probes 1 "
    "--results {out}/rows.jsonl",
    "sharding_depths": "python benchmarks/sharding_depths/run.py "
    "--only 'zero 3, 2 ranks, 7B, full' --results {out}/rows.jsonl",
    "sharding_exactness": "python benchmarks/sharding_exactness/run.py "
    "--only 'ddp, 2 ranks, llama, sft, LoRA' --results {out}/rows.jsonl",
    "speed_model": "python benchmarks/speed_model/run.py --count 2 --repeats 0 --cores 1 "
    "--processor-time "
    "--results {out}/rows.jsonl",
    "utilisation": "python -m benchmarks.utilisation.run",
    "virtual_gpu": f"{VIRTUAL} -- python benchmarks/virtual_gpu/run.py --first 9 --count 1 "
    "--truth {out}/truth.jsonl --results {out}/rows.jsonl",
    "virtual_gpu/operators": f"{VIRTUAL} -- python benchmarks/virtual_gpu/operators.py rms",
    "virtual_gpu/orders": f"{VIRTUAL} --virtual -- python -m benchmarks.virtual_gpu.orders "
    "--only probe --results {out}/rows.jsonl",
    "virtual_gpu/ranks": f"{VIRTUAL} --devices 2 -- python benchmarks/virtual_gpu/ranks.py "
    "--only 'reward model=qwen2-0.5b tuning=lora strategy=DDP' --results {out}/rows.jsonl",
    "virtual_gpu/ranks_by_formula": "python benchmarks/virtual_gpu/ranks_by_formula.py "
    "--only 'reward model=qwen2-0.5b tuning=full' --results {out}/rows.jsonl",
}
"""Named by the folder of the benchmark, and where that has several by the file."""

PARTS = {**TESTS, **{f"benchmarks/{name}": command for name, command in BENCHMARKS.items()}}


@dataclass(frozen=True)
class Outcome:
    """How a part ended.

    Attributes:
        problem: why it failed; empty where it passed.
        said: what its log says in short.
    """

    part: str
    seconds: float
    problem: str
    said: str

    @property
    def line(self) -> str:
        """The part in the list."""
        how = f"FAILED: {self.problem}" if self.problem else "passed"
        said = f"   {self.said}" if self.said else ""
        return f"{self.seconds / 60:6.1f} min  {self.part:38} {how}{said}"


def run(part: str, scratch: Path) -> Outcome:
    """Run a part to its end, whatever that is."""
    out = scratch / part.replace("/", "-")
    out.mkdir()
    words = [word.replace("{out}", str(out)) for word in shlex.split(PARTS[part])]
    environment = dict(os.environ)
    # `python` of a command is .venv's; on the virtual GPU it is that one's.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if part.startswith("benchmarks/"):
        environment["AUTOTUNE_CACHE"] = str(scratch / "cache")
        environment["PYTHONPATH"] = str(ROOT)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{out.name}.log"
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(MOST_S)
            problem = f"exit code {code}" if code else ""
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            problem = f"ended after {MOST_S / 3600:.0f} hours"
    if not problem and "{out}" in PARTS[part]:
        problem = failure_in(out)
    return Outcome(part, time.monotonic() - began, problem, said_in(log))


def failure_in(out: Path) -> str:
    """Return what went wrong by the rows that a benchmark has left; empty where nothing did."""
    files = [file for file in out.rglob("*") if file.is_file()]
    if not files:
        return "it wrote nothing"
    for file in (file for file in files if file.suffix == ".jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            ends = (row.get("outcome"), (row.get("measurement") or {}).get("outcome"))
            if "failure" in row or "crash" in ends:
                return str(row.get("failure") or line).strip().splitlines()[-1][:200]
    return ""


def said_in(log: Path) -> str:
    """Return the last lines of pytest, and that of the audit."""
    text = log.read_text(encoding="utf-8", errors="replace")
    ends = re.findall(r"^=* ?((?:\d+ \w+, )*\d+ \w+ in [\d.]+s.*?)(?: =+)?$", text, re.MULTILINE)
    return "; ".join([*ends, *re.findall(r"^audit: (.*)$", text, re.MULTILINE)])


def named(parser: argparse.ArgumentParser, names: list[str]) -> list[str]:
    """Return the parts that were named, in their order; all where none was."""
    wanted: set[str] = set()
    for name in names:
        some = {part for part in PARTS if f"{part}/".startswith(f"{name}/")}
        if not some:
            parser.error(f"there is no part `{name}`; choose from {', '.join(PARTS)}")
        wanted |= some
    return [part for part in PARTS if part in wanted or not names]


def git(*arguments: str) -> str:
    """Return what git prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run the parts; 1 where one failed."""
    parser = argparse.ArgumentParser(description="Run what takes too long for each change.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="or its beginning: tests")
    parser.add_argument("--list", action="store_true", help="only list the parts")
    arguments = parser.parse_args()
    parts = named(parser, arguments.parts)
    if arguments.list:
        print("\n".join(f"{part:38} {PARTS[part]}" for part in parts))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the part ends with this process
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="nightly-") as scratch:
        for part in parts:
            print(f"nightly: {part}", file=sys.stderr, flush=True)
            outcomes.append(run(part, Path(scratch)))
            print(f"nightly: {outcomes[-1].line}", file=sys.stderr, flush=True)
    failed = [outcome.part for outcome in outcomes if outcome.problem]
    today, commit = datetime.now(UTC).date(), git("rev-parse", "--short", "HEAD")
    changed = " and changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    print(f"{today}, commit {commit}{changed}, Python {sys.version.split()[0]}\n")
    print("\n".join(outcome.line for outcome in outcomes))
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    print(f"\n{minutes:6.1f} min  {len(outcomes) - len(failed)} of {len(outcomes)} parts passed")
    if failed:
        print(f"failed: {', '.join(failed)}; their logs are in {LOGS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
