"""The same steps for real on the CPU, with the allocations torch's own profiler saw.

What estimates are held against where there is no GPU. Runs in a child only.
"""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autotune.estimate.protocol import RolloutTraceRequest, TraceRequest
from autotune.estimate.tracing.kernels.cpu import peak_bytes, phase_peaks
from autotune.estimate.tracing.phases import StepPhases
from autotune.estimate.tracing.rollout import free_rewards, phases_of, prompt_dataset
from autotune.estimate.tracing.rollout_phases import STEPS
from autotune.estimate.tracing.trace import feed, row_dataset, trace_config, trainer_spec
from autotune.training.registry import family


def real_peak_bytes(request: TraceRequest) -> int:
    """Peak of the bytes that the CPU allocator had given out while the steps really ran."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-truth-") as scratch,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        config = trace_config(request, min(request.micro_steps), Path(scratch))
        trains = family(request.method)
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = len(request.steps)
        trainer = trains.trainer(trainer_spec(request), training, model, row_dataset(request))
        feed(trainer, request)
        trainer.train()
        del trainer
    return peak_bytes(profiler)


def real_rollout_peaks(request: RolloutTraceRequest) -> dict[str, int]:
    """Peak of each phase, of the bytes that the CPU allocator had given out, while an online
    trainer really generated and trained."""
    marks = _Marks()
    tracer: Any = marks
    with (
        tempfile.TemporaryDirectory(prefix="autotune-truth-") as scratch,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        trains = family(request.method)
        config = trace_config(request, request.micro_steps, Path(scratch))
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = STEPS
        made = trains.models(trainer_spec(request), training, model, "cpu")
        made = dataclasses.replace(made, rewards=free_rewards(made.rewards))
        rows = prompt_dataset(request)
        trainer = trains.trainer(trainer_spec(request), training, model, rows, made)
        del made
        watch = StepPhases(tracer, trainer, [request.micro_steps] * STEPS)
        phases_of(tracer, trainer, request, watch).install()
        trainer.train()
        del trainer
    return phase_peaks(profiler, marks.marks)


class _Marks:
    """Stands where a tracer would: notes when phases begin."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, str]] = []
        self.phase, self.works, self.token = "", None, 0

    def enter_phase(self, name: str) -> None:
        """A phase begins."""
        self.phase = name
        self.marks.append((time.time_ns(), name))

    def count_as(self, *_: Any) -> None:
        """Nothing is counted in parts."""

    belongs_with = count_as


def threads(count: int) -> None:
    """More threads take more scratch; the truth is taken with few."""
    torch.set_num_threads(count)
