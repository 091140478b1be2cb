"""`accelerate.yaml`: how many processes, on what, in which precision. Pure."""

from typing import Any

import yaml


def accelerate_config(*, device_kind: str, precision: str, processes: int) -> str:
    """accelerate's configuration as YAML text.

    Args:
        precision: `fp32`, `bf16` or `fp16`.
        processes: one per device.
    """
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO",
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if precision == "fp32" else precision,
        "num_machines": 1,
        "num_processes": processes,
        "rdzv_backend": "static",
        "same_network": True,
        "tpu_env": [],
        "tpu_use_cluster": False,
        "tpu_use_sudo": False,
        "use_cpu": device_kind == "cpu",
    }
    return "# Written by autotune.\n" + yaml.safe_dump(values, sort_keys=True)
