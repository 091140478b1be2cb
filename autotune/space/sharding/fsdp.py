"""What accelerate is told of FSDP: in its file by `autotune emit`, in the environment by probes and
traces. Pure."""

from typing import Any

from autotune.space.sharding.sharding import Sharding


def fsdp_fields(sharding: Sharding) -> dict[str, Any]:
    """Version 2, a unit for each layer; the trainer's own checkpointing stays in charge. By the
    names of accelerate's `fsdp_config`."""
    return {
        "fsdp_activation_checkpointing": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": sharding.offload_param_device == "cpu",
        "fsdp_reshard_after_forward": sharding.fsdp_reshard_after_forward,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_version": 2,
    }


def fsdp_environment(sharding: Sharding, **environment: Any) -> dict[str, str]:
    """Return the variables that `accelerate launch` makes of these fields.

    Args:
        environment: fields that are to be others.
    """
    fields = {**fsdp_fields(sharding), **environment}
    texts = {name.upper(): _text(value) for name, value in fields.items()}
    return {"ACCELERATE_USE_FSDP": "true", **texts}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
