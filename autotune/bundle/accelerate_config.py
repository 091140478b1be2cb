"""`accelerate.yaml`: how many processes, on what, sharded how, in which precision. Pure."""

from typing import Any

import yaml

from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.fsdp import fsdp_fields
from autotune.space.sharding.sharding import DATA_PARALLEL, DEEPSPEED, FSDP, NONE, Sharding


def accelerate_config(*, device_kind: str, precision: str, sharding: Sharding) -> str:
    """accelerate's configuration as YAML text.

    DeepSpeed's own file is named as it lies beside this one; accelerate would look for it where it
    is started, so `launch.sh` passes the whole path. With such a file accelerate refuses a
    `mixed_precision` of its own (`DeepSpeedPlugin._deepspeed_config_checks`): it is left out.

    Args:
        device_kind: `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `fp16`.
        sharding: how the training is spread over processes.
    """
    kind = sharding.distributed_type
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if precision == "fp32" else precision,
        "num_machines": 1,
        "num_processes": sharding.num_processes,
        "rdzv_backend": "static",
        "same_network": True,
        "tpu_env": [],
        "tpu_use_cluster": False,
        "tpu_use_sudo": False,
        "use_cpu": device_kind == "cpu" and kind in (NONE, *DATA_PARALLEL),
    }
    if kind == DEEPSPEED:
        del values["mixed_precision"]
        values["deepspeed_config"] = _deepspeed(sharding)
    if kind == FSDP:
        values["fsdp_config"] = fsdp_fields(sharding)
    return "# Written by autotune.\n" + yaml.safe_dump(values, sort_keys=True)


def _deepspeed(sharding: Sharding) -> dict[str, Any]:
    """Return the file; whether models are built sharded; and each machine starts its own
    processes."""
    return {
        "deepspeed_config_file": DEEPSPEED_FILE,
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": sharding.zero_stage == 3,
    }
