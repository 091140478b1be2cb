"""One rank: SFTTrainer with DeepSpeed on the CPU; what the allocator gave out."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(DS_ACCELERATOR="cpu", ACCELERATE_USE_DEEPSPEED="true")

from accelerate import PartialState  # noqa: E402

PartialState(backend="gloo")

import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from autotune.estimate.profiled import phase_peaks  # noqa: E402
from autotune.estimate.protocol import MicroBatch, TraceRequest  # noqa: E402
from autotune.estimate.trace import asked_probe, asked_rows, feed, trace_config  # noqa: E402
from autotune.training.families import family  # noqa: E402


class Marks(TrainerCallback):
    """When the first optimizer step was done: everything lasting is there then."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, str]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note it."""
        if state.global_step == 1:
            self.marks.append((time.time_ns(), "second step"))


def main() -> None:
    """Train as asked and write the peak of the second step."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    steps = [MicroBatch(**{**step, "lengths": tuple(step["lengths"])}) for step in asked["steps"]]
    request = TraceRequest.from_plain({**asked["request"], "steps": steps})
    torch.set_num_threads(1)
    marks = Marks()
    with (
        tempfile.TemporaryDirectory() as scratch,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        config = trace_config(request, Path(scratch))
        # `use_cpu` would make plain DDP of it.
        config |= {"use_cpu": False, "deepspeed": asked["deepspeed"]}
        config["accelerator_config"] = {"use_configured_state": True}
        trains = family(request.method)
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = len(request.steps)
        trainer = trains.trainer(asked_probe(request), training, model, asked_rows(request))
        feed(trainer, request)
        trainer.add_callback(marks)
        trainer.train()
        engine = trainer.deepspeed
        stage = engine.zero_optimization_stage() if engine is not None else None
    if int(os.environ["RANK"]) == 0:
        peaks = phase_peaks(profiler, marks.marks)
        reply = {"peak_bytes": peaks["second step"], "stage": stage}
        Path(asked["reply"]).write_text(json.dumps(reply), encoding="utf-8")


main()
