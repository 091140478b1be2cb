"""Estimates of memory of GRPO, RLOO and PPO against the real CPU allocator, phase by phase.

    python benchmarks/rollout_exactness/run.py      # about 20 minutes on an idle machine
    python benchmarks/rollout_exactness/run.py ppo  # one method
    python benchmarks/rollout_exactness/run.py quantized  # bases in 4 and 8 bits; bitsandbytes

Each combination gets a child of its own: a trace in which a few tokens are decoded, continued to
all, and then the same two optimizer steps for real, with every token generated.
"""

import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.estimate.records.decoding import TOKENS  # noqa: E402
from autotune.probe.survey_worker import make_tokenizer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder, read_json, write_json  # noqa: E402
from autotune.process.server import PRELOAD, ChildServer  # noqa: E402
from benchmarks.estimate_exactness.models import CONFIGS, write_model  # noqa: E402
from benchmarks.estimate_exactness.run import about_this_run, server_environment  # noqa: E402
from benchmarks.rollout_exactness.cases import (  # noqa: E402
    COMPLETION,
    Case,
    every,
    model_folder,
    quantized,
)
from benchmarks.rollout_exactness.ppo_cases import PpoCase, every_ppo, quantized_ppo  # noqa: E402
from benchmarks.rollout_exactness.worker import PHASES  # noqa: E402

HERE = Path(__file__).parent
WORKER = "benchmarks.rollout_exactness.worker:compare"
METHODS, QUANTIZED = ("grpo", "rloo", "ppo"), "quantized"


def write_models(folder: Path, names: set[str]) -> None:
    """Configs and tokenizers of the small models, each with and without caches."""
    for name in names:
        for cache in (True, False):
            own = model_folder(folder, name, cache=cache)
            write_model(name, own, cache=cache)
            make_tokenizer(own, int(CONFIGS[name]["vocab_size"]))


def compare(
    case: Case | PpoCase, server: ChildServer, models: Path, folder: Path
) -> dict[str, Any]:
    """The row of one combination; `failure` is set where it could not be run."""
    probe = ChildFolder(path=folder)
    folder.mkdir(parents=True)
    asked = {"few": TOKENS, "whole": COMPLETION}
    write_json(probe.request, {k: case.request(models, n).plain() for k, n in asked.items()})
    ending = server.run(probe, WORKER, Limits(wall_s=600, stall_s=120))
    found = read_json(probe.reply)
    if found is None:
        said = probe.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = {"failure": said[-1] if said else ending.why}
    return {"name": case.name, **found}


def table(rows: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    text = f"# GRPO, RLOO and PPO: estimate against the real CPU allocator\n\n{head}\n\n"
    text += "Size of the relative error of the peak, over all and of each phase.\n\n"
    text += "| | combinations | median | p90 | maximum |\n|---|---|---|---|---|\n"
    for name in ("whole", *PHASES):
        found = [r["error"] if name == "whole" else r["phases"].get(name) for r in done]
        errors = sorted(abs(error) for error in found if error is not None)
        high = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
        middle = statistics.median(errors)
        text += f"| {name} | {len(errors)} | {middle:.4%} | {high:.4%} | {errors[-1]:.4%} |\n"
    text += "\n| error | real peak | at | combination |\n|---|---|---|---|\n"
    for row in sorted(done, key=lambda row: -abs(row["error"])):
        size = f"{row['real_bytes'] / 2**20:.1f} MiB"
        text += f"| {row['error']:+.4%} | {size} | {row['peak_at'][0]} | {row['name']} |\n"
    failed = [row for row in rows if "failure" in row]
    return text + "".join(f"\nFailed: {row['name']}: {row['failure']}\n" for row in failed)


def all_cases() -> list[Case | PpoCase]:
    """Of all groups."""
    return [*every(), *every_ppo(), *quantized(), *quantized_ppo()]


def group_of(name: str) -> str:
    """What a combination of that name is asked for by."""
    if " bits=" in name:
        return QUANTIZED
    return next(method for method in METHODS if method in name.split()[0])


def main() -> None:
    """Run all, or those of the groups that are named; write the rows and the table. Rows of other
    groups stay as they are."""
    installed = importlib.util.find_spec("bitsandbytes") is not None
    wanted = sys.argv[1:] or [*METHODS, *([QUANTIZED] if installed else [])]
    file = HERE / "results.jsonl"
    old = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    rows = [row for row in old if group_of(row["name"]) not in wanted]
    about = about_this_run()
    with tempfile.TemporaryDirectory(prefix="rollout-exactness-") as scratch:
        models = Path(scratch, "models")
        cases = [case for case in all_cases() if group_of(case.name) in wanted]
        write_models(models, {case.model for case in cases})
        log = Path(scratch, "server.log")
        with ChildServer(log, PRELOAD, server_environment()) as server:
            for index, case in enumerate(cases):
                found = compare(case, server, models, Path(scratch, str(index)))
                rows.append({**found, "about": about})
                print(found.get("failure") or f"{found['error']:+.4%}", case.name, flush=True)
                lines = [json.dumps(row) + "\n" for row in rows]
                file.write_text("".join(lines), encoding="utf-8")
                (HERE / "results.md").write_text(table(rows, about), encoding="utf-8")


if __name__ == "__main__":
    main()
