"""What the caching allocator reserves for the same rows in other orders, on fixed and on growing
segments: LoRA of the 7B shape, micro-batches of 8 padded rows, nll, with checkpointing.

    scripts/virtual_gpu --kind h200 --virtual -- python -m benchmarks.virtual_gpu.orders

writes a row into `orders.jsonl` for each order and allocator: of each micro-batch its tokens, and
the peaks so far of what was allocated and reserved, in bytes. The training is that of
`benchmarks.outcome`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.facts.data import draw_lengths
from scripts.gpu_smoke import MODELS

HERE = Path(__file__).parent
MICRO_BATCH, MICRO_BATCHES, LONGEST = 8, 30, 2048
ALLOCATORS = {"fixed": "expandable_segments:False", "growing": "expandable_segments:True"}
ORDERS = ("probe", "launch", "group_by_length", "random 1", "random 2")
VALUES = {
    "per_device_train_batch_size": MICRO_BATCH,
    "gradient_accumulation_steps": 2,
    "max_length": LONGEST,
    "loss_type": "nll",
    "dtype": "bfloat16",
    "train_sampling_strategy": "sequential",
    "use_peft": True,
    "lora_r": 16,
    "lora_target_modules": ["all-linear"],
}


def lengths_of(order: str) -> list[int]:
    """Tokens of the rows in their order."""
    name, _, seed = order.partition(" ")
    rows = draw_lengths({"max": LONGEST, "p50": 300, "p99": 1500}, 2000)
    random.Random(int(seed or 1)).shuffle(rows)
    if name == "random":
        return [*rows[: MICRO_BATCHES * MICRO_BATCH], *[LONGEST] * 2 * MICRO_BATCH]
    if name == "group_by_length":  # transformers puts the longest row of all first
        return [LONGEST, *sorted(rows[:800], reverse=True)[: 20 * MICRO_BATCH - 1]]
    if name == "probe":  # its smallest micro-batches, the worst, then from the smallest on
        sizes = [85, 129, 85, LONGEST, 85, 129, 194, 292, 441, 665, 1003, 1621]
    else:  # what a verification launched on an H200
        sizes = [271, 1400, 271, LONGEST, 1621, 1003, 665, 441, 292, 194, 129, 85]
    return [size for size in sizes for _ in range(MICRO_BATCH)]


def measure(order: str) -> list[dict[str, Any]]:
    """Train in this process: tokens and peaks in bytes after each micro-batch."""
    import torch
    from trl import SFTTrainer

    from benchmarks.outcome import harness

    seen: list[dict[str, Any]] = []

    class Watched(SFTTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            loss = super().training_step(model, inputs, *rest, **more)
            tokens = inputs["input_ids"].numel()
            peaks = {"allocated": torch.cuda.max_memory_allocated()}
            peaks["reserved"] = torch.cuda.max_memory_reserved()
            seen.append({"tokens": tokens, **peaks})
            return loss

    with tempfile.TemporaryDirectory(prefix="autotune-orders-") as folder:
        config = Path(folder, "config.json")
        model = {**MODELS["qwen2.5-7b"], "dtype": "bfloat16"}
        config.write_text(json.dumps(model), encoding="utf-8")
        training = harness.Training(config.parent, lengths_of(order), None, Path(folder), 600)
        harness.trainer_of(training, VALUES, "cuda", Watched).train()
    return seen


def main() -> None:
    """Every order with each allocator, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", choices=ORDERS, help="measure this one, here")
    parser.add_argument("--only", choices=ORDERS, action="append", help="in place of all")
    parser.add_argument("--results", type=Path, default=HERE / "orders.jsonl")
    options = parser.parse_args()
    if options.order is not None:
        print("MEASURED " + json.dumps(measure(options.order)))
        return
    options.results.unlink(missing_ok=True)
    for order in options.only or ORDERS:
        for name, setting in ALLOCATORS.items():
            command = [sys.executable, "-m", "benchmarks.virtual_gpu.orders", "--order", order]
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            lines = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
            if not lines:
                sys.exit(done.stderr[-2000:])
            seen = json.loads(lines[0].removeprefix("MEASURED "))
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"order": order, "segments": name, "seen": seen}) + "\n")
            last = seen[-1]
            figures = [f"{what} {last[what] / 2**30:.1f} GiB" for what in ("allocated", "reserved")]
            print(f"{order}, {name}: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
