"""Plans of several devices against real ranks on torch's real CUDA code: peaks of each.

The combinations are drawn by a seed. The truth is a probe (`autotune/probe/`), whose ranks talk
through torch's own ProcessGroupNCCL; the plan traces DeepSpeed or FSDP for each. What
`results_ranks.jsonl` holds is not run again; failures are.

    scripts/virtual_gpu --kind a100-80gb --devices 4 -- python benchmarks/virtual_gpu/ranks.py
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.plan.candidates import estimates_of  # noqa: E402
from autotune.plan.children import in_children  # noqa: E402
from autotune.plan.engines import answered  # noqa: E402
from autotune.plan.progress import Progress  # noqa: E402
from autotune.plan.trace_choice import EVERY  # noqa: E402
from autotune.plan.variants import variant_tasks  # noqa: E402
from autotune.probe.measure import measure, probe_request  # noqa: E402
from autotune.probe.protocol import Measurement  # noqa: E402
from autotune.probe.survey import survey  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder  # noqa: E402
from autotune.process.run_folder import RunFolder  # noqa: E402
from autotune.space.bind import bind  # noqa: E402
from autotune.space.job_file.load import load_job  # noqa: E402
from autotune.space.trl_config import settings  # noqa: E402
from benchmarks.command import about_this_run, rows_of, server_environment  # noqa: E402
from benchmarks.virtual_gpu.models import write_model  # noqa: E402
from benchmarks.virtual_gpu.run import add  # noqa: E402

HERE = Path(__file__).parent
NO_LIMIT = 1 << 50
Row = dict[str, Any]
ZERO: Row = {"distributed_type": "DEEPSPEED", "offload_optimizer_device": "none"}
STRATEGIES: dict[str, Row] = {
    "DDP": {"distributed_type": "MULTI_GPU"},
    "ZeRO-1": {**ZERO, "zero_stage": 1},
    "ZeRO-2": {**ZERO, "zero_stage": 2},
    "ZeRO-3": {**ZERO, "zero_stage": 3, "offload_param_device": "none"},
    "ZeRO-2, optimizer on cpu": {**ZERO, "zero_stage": 2, "offload_optimizer_device": "cpu"},
    "ZeRO-3, optimizer on cpu, weights on cpu": {
        **ZERO,
        "zero_stage": 3,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "cpu",
    },
    "FSDP2": {"distributed_type": "FSDP"},
}
FACTORS: dict[str, tuple[Any, ...]] = {
    "method": ("sft", "sft", "dpo", "reward"),
    "model": ("qwen2-0.5b", "llama-1b", "gpt2-large"),
    "tuning": ("full", "lora"),
    "strategy": tuple(STRATEGIES),
    "devices": (2, 2, 4),
    "precision": ("bf16", "bf16", "fp16"),
    "rows": (1, 2, 4),
    "accumulation": (1, 2),
    "length": (256, 512),
    "checkpointing": (False, True),
}
LIMITS = Limits(wall_s=900, stall_s=300)


def drawn(seed: int, number: int) -> Row:
    """Combination `number` of a seed."""
    draw = random.Random(f"ranks {seed} {number}")
    return {name: draw.choice(choices) for name, choices in FACTORS.items()}


def job_of(case: Row, model: Path) -> Row:
    """The fields of a job file that leaves one candidate."""
    loss = {"loss_type": "nll"} if case["method"] == "sft" else {}
    return {
        "model": str(model),
        "method": case["method"],
        "tuning": case["tuning"],
        "dataset": {"lengths": {"max": case["length"], "rows": 1000}},
        "global_batch_size": case["rows"] * case["accumulation"] * case["devices"],
        "max_length": case["length"],
        "precision": case["precision"],
        "devices": {"kind": "cuda", "count": case["devices"]},
        "training": {"lora_dropout": 0.0} if case["tuning"] == "lora" else {},
        "fixed": {
            **STRATEGIES[case["strategy"]],
            **loss,
            "per_device_train_batch_size": case["rows"],
            "gradient_checkpointing": case["checkpointing"],
            "attn_implementation": "sdpa",
            "optim": "adamw_torch_fused",
            "expandable_segments": False,
            "dataloader_num_workers": 0,
            "use_liger_kernel": False,
            "num_processes": case["devices"],
        },
    }


def compare(case: Row, server: ChildServer, folder: Path, known: Row | None) -> Row:
    """What the ranks of a combination took, and what its plan says.

    Args:
        known: an earlier row of it, whose ranks count.
    """
    config = write_model(case["model"], folder / "model")
    file = folder / "job.yaml"
    file.write_text(json.dumps(job_of(case, config)), encoding="utf-8")
    job, definition = load_job(file)
    run = RunFolder(path=folder / "run")
    run.path.mkdir()
    facts = survey(job, run, server)
    candidate = bind(definition, job, facts).candidates[0]
    if known is None:
        chosen = settings(job, facts, candidate, str(folder / "out"))
        request = probe_request(chosen, rows=run.rows, limit=None)
        found = measure(server, ChildFolder(path=folder / "probe"), request, LIMITS)
        if found.outcome != "ok":
            said = f"{found.outcome}: {found.reason} {(found.failure or {}).get('trace', '')}"
            return {"failure": said[-1000:]}
        known = {**_figures(found), "knobs": dict(candidate.values)}
    (task,) = variant_tasks(
        [settings(job, facts, candidate)], rows=run.rows, limit=NO_LIMIT, cache=None
    )
    trace = in_children(server, folder / "traces", Progress())
    replies = answered([task], EVERY, _estimates, trace, with_speeds=False)
    plan = estimates_of([task], replies, NO_LIMIT)[candidate.key]
    return {**known, "plan": _planned(plan)}


def _estimates(task: Any, reply: Any) -> Any:
    return estimates_of([task], [reply], NO_LIMIT)


def _figures(found: Measurement) -> Row:
    """Of the ranks. Bytes."""
    return {
        "engine": found.engine,
        "allocated_bytes": found.allocated_peak_bytes,
        "reserved_bytes": found.reserved_peak_bytes,
        "process_bytes": found.peak_memory_bytes,
        "host_bytes": found.host_peak_bytes,
        "ranks": [rank["allocated_peak_bytes"] for rank in found.ranks],
        "seconds": round(found.seconds, 1),
    }


def _planned(plan: Any) -> Row:
    return {
        "allocated_bytes": plan.peak_allocated_bytes,
        "reserved_bytes": plan.peak_reserved_bytes,
        "process_bytes": plan.peak_memory_bytes,
        "host_bytes": plan.host_bytes,
        "method": plan.method,
        "notes": list(plan.notes),
        "phase": plan.peak_phase,
        "operator": plan.peak_operator,
    }


def table(rows: list[Row]) -> str:
    """Errors of the plan, a row a combination."""
    lines = [
        "Errors: plan / real - 1, of the rank that takes most.",
        "",
        "| combination | engine | allocated, GB | allocated | reserved | process | host |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (one for one in rows if "failure" not in one):
        errors = (
            f"{row['plan'][name] / row[name] - 1:+.2%}" if row["plan"][name] and row[name] else ""
            for name in ("allocated_bytes", "reserved_bytes", "process_bytes", "host_bytes")
        )
        allocated = row["allocated_bytes"] / 1e9
        lines.append(
            f"| {row['name']} | {row['engine']} | {allocated:.2f} | {' | '.join(errors)} |"
        )
    for row in (one for one in rows if "failure" in one):
        lines.append(f"\nFailed: {row['name']}: {row['failure'].strip().splitlines()[-1]}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--only", default="", help="of those whose name has this text")
    parser.add_argument("--replan", action="store_true", help="plan anew what has been measured")
    parser.add_argument("--results", type=Path, default=HERE / "results_ranks.jsonl")
    options = parser.parse_args()
    about = about_this_run()
    with (
        tempfile.TemporaryDirectory(prefix="autotune-ranks-") as scratch,
        ChildServer(Path(scratch) / "server.log", environment=server_environment()) as server,
    ):
        known = {row["name"]: row for row in rows_of(options.results) if "failure" not in row}
        for number in range(options.count):
            case = drawn(options.seed, number)
            name = " ".join(f"{key}={value}" for key, value in case.items())
            if options.only not in name or (name in known) != options.replan:
                continue
            folder = Path(scratch) / str(number)
            folder.mkdir()
            row = {**compare(case, server, folder, known.get(name)), "name": name, "about": about}
            add(options.results, row)
            print(f"{number}: {name}", flush=True)
    text = table(list(rows_of(options.results)))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
