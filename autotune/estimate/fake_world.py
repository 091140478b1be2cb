"""A world of many processes of which only this one is there; DeepSpeed and FSDP see no difference.

A fake process group answers every collective at once and leaves the tensors as they are. What a
launcher and accelerate would have set is set here. Runs in a child only.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import training_args

from autotune.space.fsdp import fsdp_environment
from autotune.space.sharding import DEEPSPEED, FSDP, Sharding
from autotune.training.hooks import replaced


def launched(sharding: Sharding, rank: int) -> dict[str, str]:
    """The environment that `accelerate launch` gives a rank; on the CPU, where traces are made."""
    count = str(sharding.num_processes)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count}
    own |= {"LOCAL_WORLD_SIZE": count, "ACCELERATE_TORCH_DEVICE": "cpu"}
    if sharding.distributed_type == DEEPSPEED:
        own |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
    if sharding.distributed_type == FSDP:
        # The models are made without storage: nothing is loaded, nothing is saved.
        unlike = {
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        own |= fsdp_environment(sharding, **unlike)
    return own


def state_of_rank(sharding: Sharding, backend: str) -> None:
    """accelerate's state of this rank. It takes FSDP for GPUs only, until it is told otherwise."""
    PartialState(backend=backend)
    if sharding.distributed_type == FSDP:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def spread_config(
    config: Mapping[str, Any], deepspeed: Mapping[str, Any] | None, scratch: Path
) -> dict[str, Any]:
    """A flat configuration for a rank whose state is there already.

    With `use_cpu` accelerate would make plain DDP of it. The sizes of batches in DeepSpeed's JSON
    are those of the configuration; a trace of fp16 is one of bf16.
    """
    spread = {**config, "use_cpu": False, "accelerator_config": {"use_configured_state": True}}
    if deepspeed is not None:
        own = {name: value for name, value in deepspeed.items() if name != "train_batch_size"}
        own["train_micro_batch_size_per_gpu"] = config["per_device_train_batch_size"]
        own["gradient_accumulation_steps"] = config["gradient_accumulation_steps"]
        if own.pop("fp16", {}).get("enabled") or own.get("bf16", {}).get("enabled"):
            own["bf16"] = {"enabled": True}
        file = scratch / "deepspeed.json"
        file.write_text(json.dumps(own), encoding="utf-8")
        spread["deepspeed"] = str(file)
    return spread


@contextlib.contextmanager
def fake_world(sharding: Sharding, rank: int) -> Iterator[None]:
    """This process is one of as many as there would be, and the only one."""
    before = dict(os.environ)
    os.environ.update(launched(sharding, rank))
    torch.distributed.init_process_group(
        "fake", rank=rank, world_size=sharding.num_processes, store=FakeStore()
    )
    try:
        state_of_rank(sharding, "fake")
        # transformers lets no CPU compute in 16 bits unless it is told `use_cpu`.
        with replaced(training_args, "is_torch_bf16_gpu_available", lambda: True):
            yield
    finally:
        _forget_state()
        _leave()
        os.environ.clear()
        os.environ.update(before)


def _leave() -> None:
    """Destroy the process group, and what DeepSpeed keeps of it: the next trace has its own."""
    deepspeed: Any = sys.modules.get("deepspeed.comm.comm")
    if deepspeed is not None and deepspeed.cdb is not None:
        deepspeed.destroy_process_group()
        deepspeed.cdb = None
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _forget_state() -> None:
    """accelerate's states are kept for a whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
