"""A world of many processes of which only this one is there; DeepSpeed and FSDP see no difference.

A fake process group answers every collective at once and leaves the tensors as they are. What a
launcher and accelerate would have set is set here. Runs in a child only.
"""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed
from accelerate.state import AcceleratorState, GradientState
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import training_args

from autotune.space.sharding.sharding import DEEPSPEED, Sharding
from autotune.training.distributed import STATE_IS_THERE, engine_environment, state_on_cpu
from autotune.training.patching import replaced


def rank_environment(sharding: Sharding, rank: int) -> dict[str, str]:
    """Return the environment that `accelerate launch` gives a rank; on the CPU, where traces are
    made."""
    count = str(sharding.num_processes)
    environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count}
    environment |= {"LOCAL_WORLD_SIZE": count, "ACCELERATE_TORCH_DEVICE": "cpu"}
    if sharding.distributed_type == DEEPSPEED:
        environment["DS_ACCELERATOR"] = "cpu"
    # The models are made without storage: nothing is loaded, nothing is saved.
    unlike = {
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    return environment | engine_environment(sharding, **unlike)


def sharded_config(
    config: Mapping[str, Any], deepspeed: Mapping[str, Any] | None, scratch: Path
) -> dict[str, Any]:
    """Return a flat configuration for a rank whose state is there already.

    The sizes of batches in DeepSpeed's JSON are those of the configuration; a trace of fp16 is one
    of bf16.
    """
    sharded = {**config, **STATE_IS_THERE}
    if deepspeed is not None:
        settings = {name: value for name, value in deepspeed.items() if name != "train_batch_size"}
        settings["train_micro_batch_size_per_gpu"] = config["per_device_train_batch_size"]
        settings["gradient_accumulation_steps"] = config["gradient_accumulation_steps"]
        if settings.pop("fp16", {}).get("enabled") or settings.get("bf16", {}).get("enabled"):
            settings["bf16"] = {"enabled": True}
        file = scratch / "deepspeed.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        sharded["deepspeed"] = str(file)
    return sharded


@contextlib.contextmanager
def fake_world(sharding: Sharding, rank: int) -> Iterator[None]:
    """This process is one of as many as there would be, and the only one."""
    environment = dict(os.environ)
    os.environ.update(rank_environment(sharding, rank))
    torch.distributed.init_process_group(
        "fake", rank=rank, world_size=sharding.num_processes, store=FakeStore()
    )
    try:
        with contextlib.ExitStack() as stack:
            # transformers lets no CPU compute in 16 bits unless it is told `use_cpu`.
            stack.enter_context(
                replaced(training_args, "is_torch_bf16_gpu_available", lambda: True)
            )
            if sharding.distributed_type == DEEPSPEED:
                # accelerate's state joins DeepSpeed's group, which would compile, for minutes, what
                # ranks on CPUs exchange through shared memory: nobody is there.
                backend = importlib.import_module("deepspeed.comm.torch")
                stack.enter_context(replaced(backend, "build_shm_op", lambda: None))
            state_on_cpu(sharding, "fake")
            yield
    finally:
        _forget_state()
        _leave()
        os.environ.clear()
        os.environ.update(environment)


def _leave() -> None:
    """Destroy the process group, and what DeepSpeed keeps of it: the next trace has its own."""
    deepspeed: Any = sys.modules.get("deepspeed.comm.comm")
    if deepspeed is not None and deepspeed.cdb is not None:
        deepspeed.destroy_process_group()
        deepspeed.cdb = None
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:  # else the next trace, too, would hold weights once more among some
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _forget_state() -> None:
    """accelerate's states are kept for a whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
