"""The same steps for real on the CPU, with the allocations torch's own profiler saw.

What estimates are held against where there is no GPU. Runs in a child only.
"""

import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from autotune.estimate.profiled import peak_bytes
from autotune.estimate.protocol import TraceRequest
from autotune.estimate.trace import asked_probe, asked_rows, feed, trace_config
from autotune.training.families import family


def real_peak_bytes(request: TraceRequest) -> int:
    """Peak of the bytes that the CPU allocator had given out while the steps really ran."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-truth-") as scratch,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        config = trace_config(request, Path(scratch))
        trains = family(request.method)
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = len(request.steps)
        trainer = trains.trainer(asked_probe(request), training, model, asked_rows(request))
        feed(trainer, request)
        trainer.train()
        del trainer
    return peak_bytes(profiler)


def threads(count: int) -> None:
    """More threads take more scratch; the truth is taken with few."""
    torch.set_num_threads(count)
