"""One combination on a GPU, or on one that stands for it: what torch's own allocator makes of it.

Runs in a child of `run.py`. The trainer is that of a probe (`training/`), its micro-batches are
those of a probe in their order: a first optimizer step that makes the optimizer's state, one that
ends with the worst micro-batch, then those that a probe times. Nothing is timed here.
"""

import os
from pathlib import Path
from typing import Any

STEPS = 4
"""Optimizer steps: the two of a probe's warm-up, and two more."""


def train(request: Any, scratch: Path) -> None:
    """Train the first steps of a probe's request."""
    from autotune.probe.step_meter import Schedule
    from autotune.probe.worker import configured
    from autotune.training.batch_plan import Rows, as_dataset, batching_of, plan
    from autotune.training.ranks import Ranks
    from autotune.training.registry import family

    trains = family(request.method)
    shown = min(request.config["gradient_accumulation_steps"], 2)
    training, model = configured(
        trains, request, Ranks.of(request, shown), scratch, gradient_accumulation_steps=shown
    )
    batching = batching_of(
        request.method, request.config, global_batch=request.global_batch, seed=request.seed
    )
    rows = Rows(request.rows, request.method)
    steps = plan(rows, batching, request.rows_total, sampled=request.rows_sampled)
    training.max_steps = STEPS
    batches = Schedule(steps, shown).batches(steps)[: STEPS * shown]
    trainer = trains.trainer(request, training, model, as_dataset(batches))
    trainer.train()


def figures() -> dict[str, Any]:
    """What the allocator took at most. Bytes."""
    import torch

    stats = torch.cuda.memory_stats()
    return {
        "requested_bytes": stats["requested_bytes.all.peak"],
        "allocated_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
    }


def measure_peaks(path: Path) -> None:
    """Run what `path/request.json` asks for; write `path/reply.json`, and where `RECORD` is set the
    allocator's own history to that file."""
    from autotune.probe.protocol import ProbeRequest
    from autotune.process.messages import ChildFolder, read_json, write_json
    from autotune.training.spec import Unsupported

    folder = ChildFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request))
    os.environ.update(request.environment)
    import torch

    record = os.environ.get("RECORD")
    if record:
        torch.cuda.memory._record_memory_history(max_entries=10_000_000, stacks="python")
    if request.memory_limit_bytes is not None:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(request.memory_limit_bytes / total, 1.0))
    found: dict[str, Any] = {"oom": False}
    free = torch.cuda.mem_get_info()[0]
    try:
        train(request, folder.scratch)
    except torch.cuda.OutOfMemoryError as error:
        found = {"oom": True, "said": str(error).splitlines()[0]}
    except Unsupported as error:
        found = {"failure": str(error)}
    if record:
        torch.cuda.memory._dump_snapshot(record)
    write_json(folder.reply, {**found, **figures(), "free_bytes": free})
