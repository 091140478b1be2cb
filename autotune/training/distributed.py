"""One process as one of several ranks: the process group, and the engine that spread the training.

On GPUs accelerate finds all it needs in the environment, as under `accelerate launch`. On the CPU
it makes plain DDP of DeepSpeed and of FSDP under `use_cpu`, and without that picks no
backend: there the state is made first, with gloo. For FSDP on the CPU, of which accelerate knows
nothing, the state says that it is one of several GPUs; the device of every tensor stays the CPU.
Runs in a child only.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from autotune.space.sharding.sharding import (
    DEEPSPEED,
    FSDP,
    Sharding,
    fsdp_environment,
    fsdp_name,
    parallelism_environment,
    zero_name,
)
from autotune.training.spec import Place

TIMEOUT = timedelta(hours=1)
"""The limit of a collective; the parent finds and ends a rank that hangs long before."""
STATE_IS_THERE = {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
"""Fields of the trainer of a rank on the CPU, whose state is made before it. With `use_cpu`
accelerate would make plain DDP of it."""


def join(place: Place, sharding: Sharding, *, cuda: bool) -> None:
    """Make this process a rank: variables, process group, accelerate's state."""
    os.environ.update(
        RANK=str(place.rank),
        LOCAL_RANK=str(place.local_rank),
        WORLD_SIZE=str(place.count),
        LOCAL_WORLD_SIZE=str(place.local_count),
        MASTER_ADDR=place.host,
        MASTER_PORT=str(place.port),
        **engine_environment(sharding),
    )
    if not cuda and sharding.distributed_type == DEEPSPEED:
        os.environ["DS_ACCELERATOR"] = "cpu"
    store = dist.TCPStore(
        place.host,
        place.port,
        place.count,
        is_master=place.rank == 0,
        timeout=TIMEOUT,
        master_listen_fd=place.listener,
    )
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.count, timeout=TIMEOUT
    )
    if not cuda and sharding.distributed_type in (DEEPSPEED, FSDP):
        state_on_cpu(sharding, "gloo")


def state_on_cpu(sharding: Sharding, backend: str) -> None:
    """Make accelerate's state of this rank, and have it take FSDP on the CPU as if on GPUs."""
    PartialState(backend=backend)
    if sharding.distributed_type == FSDP:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def engine_environment(sharding: Sharding, **fsdp_fields: Any) -> dict[str, str]:
    """Return the variables by which `accelerate launch` chooses what spreads a training.

    Args:
        fsdp_fields: fields of accelerate's `fsdp_config` that replace the sharding's own.
    """
    shared_rows = parallelism_environment(sharding)
    if sharding.distributed_type == DEEPSPEED:
        return {"ACCELERATE_USE_DEEPSPEED": "true", **shared_rows}
    if sharding.distributed_type == FSDP:
        return {**fsdp_environment(sharding, **fsdp_fields), **shared_rows}
    return {}


def overrides(
    sharding: Sharding, deepspeed: dict[str, Any] | None, *, cuda: bool
) -> dict[str, Any]:
    """Return fields of the configuration that a rank's trainer is given besides those of the
    bundle."""
    if sharding.distributed_type not in (DEEPSPEED, FSDP):
        return {}
    fields: dict[str, Any] = {"deepspeed": deepspeed} if deepspeed is not None else {}
    if not cuda:
        fields |= STATE_IS_THERE
    return fields


def all_agree(vote: bool) -> bool:
    """True if all ranks agree; every rank has to call this, and gets the same answer."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    votes = torch.tensor([int(vote)], device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())


def engine_of(trainer: Any) -> str:
    """Return the engine that really sharded the training, as `engine_name` would say it, or
    `nothing`."""
    engine = getattr(trainer.accelerator, "deepspeed_engine_wrapped", None)
    if engine is not None:
        engine = engine.engine
        offloads = engine.zero_offload_optimizer(), engine.zero_offload_param()
        devices = [
            "none" if offload is None else str(getattr(offload.device, "value", offload.device))
            for offload in offloads
        ]
        return zero_name(engine.zero_optimization_stage(), *devices)
    # PPOTrainer has what it wrapped as its model.
    model = getattr(trainer, "model_wrapped", None) or trainer.model
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if modules:
        # The outermost, and the head, keep their weights between the passes in any case.
        groups = [module._get_fsdp_state()._fsdp_param_group for module in modules]
        return fsdp_name(
            any(group and group.post_forward_mesh_info is not None for group in groups)
        )
    return "DDP" if isinstance(model, DistributedDataParallel) else "nothing"


def in_unison(trainer: Any) -> bool:
    """True if several ranks generate in step, because none has the whole model."""
    several = trainer.accelerator.num_processes > 1
    return several and engine_of(trainer).startswith(("ZeRO-3", "FSDP"))


def other_settings(trainer: Any, zero: Mapping[str, Any]) -> str | None:
    """Return in words the settings that DeepSpeed's engine did not take over; None: none.

    Args:
        zero: the section `zero_optimization` of its file.
    """
    engine = trainer.accelerator.deepspeed_engine_wrapped.engine
    settings = _zero_settings(engine, engine.optimizer)
    differences = [
        f"{name}: {settings[name]} (asked: {zero[name]})"
        for name in settings
        if settings[name] != zero[name]
    ]
    return ", ".join(differences) or None


def _zero_settings(engine: Any, optimizer: Any) -> dict[str, Any]:
    """Return the settings with which the engine works, by the names of its file."""
    if engine.zero_optimization_stage() < 3:
        return {
            "overlap_comm": optimizer.overlap_comm,
            "reduce_bucket_size": optimizer.reduce_bucket_size,
            "allgather_bucket_size": optimizer.allgather_bucket_size,
        }
    return {
        "overlap_comm": engine.zero_overlap_comm(),
        "reduce_bucket_size": optimizer.reduce_bucket_size,
        "stage3_prefetch_bucket_size": optimizer.prefetch_elements,
        "stage3_param_persistence_threshold": (
            optimizer.parameter_offload.param_numel_persistence_threshold
        ),
    }
