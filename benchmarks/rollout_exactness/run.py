"""Estimates of memory of GRPO, RLOO and PPO against the real CPU allocator, phase by phase.

    python benchmarks/rollout_exactness/run.py      # about 20 minutes on an idle machine
    python benchmarks/rollout_exactness/run.py ppo  # one method
    python benchmarks/rollout_exactness/run.py quantized  # bases in 4 and 8 bits; bitsandbytes

Each combination gets a child of its own: a trace in which a few tokens are decoded, continued to
all, and then the same two optimizer steps for real, with every token generated.
"""

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.estimate.records.decoding import TOKENS  # noqa: E402
from autotune.probe.survey_worker import make_tokenizer  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from benchmarks.command import (  # noqa: E402
    Results,
    answer,
    failures,
    parser_of,
    run_and_tell,
    run_in_children,
)
from benchmarks.estimate_exactness.models import CONFIGS, write_model  # noqa: E402
from benchmarks.rollout_exactness.cases import (  # noqa: E402
    COMPLETION,
    Case,
    every,
    model_folder,
    quantized,
    taught,
)
from benchmarks.rollout_exactness.ppo_cases import PpoCase, every_ppo, quantized_ppo  # noqa: E402
from benchmarks.rollout_exactness.worker import PHASES  # noqa: E402

HERE = Path(__file__).parent
WORKER = "benchmarks.rollout_exactness.worker:compare"
METHODS, QUANTIZED = ("grpo", "rloo", "distillation", "ppo"), "quantized"


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
    asked = {"few": TOKENS, "whole": COMPLETION}
    request = {k: case.request(models, n).plain() for k, n in asked.items()}
    found = answer(server, WORKER, request, folder, Limits(wall_s=600, stall_s=120))
    return {"name": case.name, **found}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    about = max((row["about"] for row in rows), key=lambda about: about["date"])
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    text = f"# GRPO, RLOO and PPO: estimate against the real CPU allocator\n\n{head}\n\n"
    text += "Size of the relative error of the peak, over all and of each phase.\n\n"
    text += "| | combinations | median | p90 | maximum |\n|---|---|---|---|---|\n"
    for name in ("whole", *PHASES):
        found = [r["error"] if name == "whole" else r["phases"].get(name) for r in done]
        errors = sorted(abs(error) for error in found if error is not None)
        if not errors:
            continue
        high = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
        middle = statistics.median(errors)
        text += f"| {name} | {len(errors)} | {middle:.4%} | {high:.4%} | {errors[-1]:.4%} |\n"
    text += "\n| error | real peak | at | combination |\n|---|---|---|---|\n"
    for row in sorted(done, key=lambda row: -abs(row["error"])):
        size = f"{row['real_bytes'] / 2**20:.1f} MiB"
        text += f"| {row['error']:+.4%} | {size} | {row['peak_at'][0]} | {row['name']} |\n"
    return text + failures(rows)


def all_cases() -> list[Case | PpoCase]:
    """Of all groups."""
    return [*every(), *every_ppo(), *taught(), *quantized(), *quantized_ppo()]


def group_of(name: str) -> str:
    """What a combination of that name is asked for by."""
    if " bits=" in name:
        return QUANTIZED
    return next(method for method in METHODS if method in name.split()[0])


def run(results: Results, groups: Sequence[str]) -> None:
    """Run what of some groups is missing."""
    cases = results.waiting(case for case in all_cases() if group_of(case.name) in groups)
    with tempfile.TemporaryDirectory(prefix="rollout-exactness-") as scratch:
        models = Path(scratch)
        names = {case.model for case in cases}
        write_models(models, names | {getattr(case, "teacher", "") for case in cases} - {""})
        run_in_children(
            cases,
            results,
            lambda case, server, folder: compare(case, server, models, folder),
            lambda row: f"{row.get('failure') or format(row['error'], '+.4%')} {row['name']}",
        )


def main() -> None:
    """Run what is missing, then write and print the table."""
    installed = importlib.util.find_spec("bitsandbytes") is not None
    groups = [*METHODS, *([QUANTIZED] if installed else [])]
    parser = parser_of(__doc__, HERE / "results.jsonl")
    parser.add_argument("groups", nargs="*", default=groups, help="in place of all")
    options = parser.parse_args()
    run_and_tell(options, lambda results: run(results, options.groups), table)


if __name__ == "__main__":
    main()
