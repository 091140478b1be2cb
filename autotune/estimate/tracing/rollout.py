"""Two optimizer steps of a real online trainer under FakeTensorMode: generation, scoring, update.

The trainer is the one that probes use, and generation is transformers' own. Of a completion only
the first tokens are decoded, in the first step only one; then the trainer goes on as if all had
been (`decoding.py` puts in what the second step left out). What rewards completions by a function
costs nothing here; reward models run.
Runs in a child only.
"""

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.estimate.protocol import RolloutTraceReply, RolloutTraceRequest
from autotune.estimate.records import events
from autotune.estimate.tracing.kernels.bitsandbytes import without_bitsandbytes
from autotune.estimate.tracing.kernels.cuda import CudaRules
from autotune.estimate.tracing.kernels.flash_attention import flash_attention_installed
from autotune.estimate.tracing.patches import deepspeed_left_alone, fake_run
from autotune.estimate.tracing.phases import StepPhases, watch_layers
from autotune.estimate.tracing.rollout_phases import STEPS, GroupPhases, Phases
from autotune.estimate.tracing.trace import (
    inner_model,
    materialize,
    models_of,
    trace_config,
    trainer_spec,
)
from autotune.estimate.tracing.tracer import Tracer
from autotune.training.registry import family


def trace_rollout(request: RolloutTraceRequest) -> RolloutTraceReply:
    """Run the steps of `request` on fake tensors.

    Raises:
        Irregular: fewer layers are asked for, and they cannot stand for all.
        Exception: whatever the stack raises where the candidate cannot be traced.
    """
    cuda = None if request.cuda is None else CudaRules(**request.cuda)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-trace-") as scratch,
        flash_attention_installed(request.config.get("attn_implementation")),
    ):
        config = trace_config(request, request.micro_steps, Path(scratch))
        trains = family(request.method)
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = STEPS
        models = models_of(request, training, model)
        models = dataclasses.replace(models, rewards=free_rewards(models.rewards))
        tracer = Tracer(models.policy.config.get_text_config().vocab_size, cuda)
        with contextlib.ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(fake_run(tracer, cuda))
            stack.enter_context(deepspeed_left_alone())
            stack.enter_context(without_bitsandbytes(on_cuda=cuda is not None))
            for module in models.modules():
                materialize(module, tracer)
            with tracer:
                rows = prompt_dataset(request)
                trainer = trains.trainer(trainer_spec(request), training, model, rows, models)
                for parameter in trainer.model.parameters():
                    tracer.count_as(parameter, events.WEIGHTS)
            layers = watch_layers(tracer, inner_model(trains.policy(trainer)))
            taught = 0
            for module in models.modules()[1:]:
                if module is models.teacher:
                    taught = watch_layers(tracer, module, events.chunk)
                else:
                    watch_layers(tracer, module)
            step_phases = StepPhases(tracer, trainer, [request.micro_steps] * STEPS)
            phases = phases_of(tracer, trainer, request, step_phases)
            phases.install()
            stack.enter_context(tracer)
            trainer.train()
        del trainer
    work = {
        **phases.work,
        "update": step_phases.micro_work[-1],
        "optimizer": step_phases.optimizer_work,
    }
    return RolloutTraceReply(
        events=tracer.finish(),
        layers=layers,
        teacher_layers=taught,
        work={name: [w.row for w in works] for name, works in work.items()},
        windows=phases.windows,
        policy=dict(tracer.policy),
    )


def free_rewards(rewards: list[Any]) -> list[Any]:
    """Return the rewards, the functions among them replaced by one that costs nothing."""
    return [reward if isinstance(reward, torch.nn.Module) else no_reward for reward in rewards]


def no_reward(completions: list[Any], **_: Any) -> list[float]:
    """Stand for the functions that reward completions."""
    return [float(index % 2) for index in range(len(completions))]


def prompt_dataset(request: RolloutTraceRequest) -> Any:
    """Return a row for each prompt; their tokens are made up later."""
    from datasets import Dataset

    rows = [{"prompt": str(n), "input_ids": [n]} for n in range(len(request.prompts))]
    return Dataset.from_list(rows)


def phases_of(
    tracer: Tracer, trainer: Any, request: RolloutTraceRequest, step_phases: StepPhases
) -> Phases:
    """Return the phases, marked at the entry points of a method's trainer."""
    if request.method == "ppo":
        from autotune.estimate.tracing.ppo_phases import PpoPhases

        return PpoPhases(tracer, trainer, request, step_phases)
    return GroupPhases(tracer, trainer, request, step_phases)
