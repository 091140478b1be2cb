"""The files that the trainer and accelerate read: `METHOD_config.yaml`, the flat YAML of
`trl METHOD --config`, and `accelerate.yaml`: how many processes, on what, sharded how, in which
precision. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.job.methods import Method
from autotune.space.knobs import COMPILES
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import (
    DATA_PARALLEL,
    DEEPSPEED,
    FSDP,
    NONE,
    Sharding,
    fsdp_fields,
    parallelism_fields,
)
from autotune.space.trl_config import Settings, resolve_precision, without_none

HEADER = """\
# Written by autotune. Read by `trl {method.name} --config` and by launch.sh beside it.
# Fields of TRL's ScriptArguments, {method.config} and ModelConfig together, sorted.
"""


class _Dumper(yaml.SafeDumper):
    """Writes equal values alike, be they one object or two."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


OWN_HEADER = """\
# Written by autotune. Read by {method.own_script} and launch.sh beside it.
# Fields of its arguments, {method.config} and TRL's ModelConfig together, sorted.
"""


def trainer_config(config: Mapping[str, Any], method: Method, notes: Sequence[str] = ()) -> str:
    """Return the configuration as YAML text, the same bytes for the same values.

    Args:
        notes: lines of comment for whoever reads it.
    """
    body = yaml.dump(
        without_none(config),
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    comment = "".join(f"# {line}\n" for note in notes for line in textwrap.wrap(note, 98))
    header = OWN_HEADER if method.own_script else HEADER
    return header.format(method=method) + comment + body


def accelerate_config(chosen: Settings) -> str:
    """Return accelerate's configuration as YAML text.

    DeepSpeed's own file lies beside this one; accelerate would look for it where it is started, so
    `launch.sh` passes the whole path. With such a file accelerate refuses a `mixed_precision` of
    its own (`DeepSpeedPlugin._deepspeed_config_checks`): it is left out.
    """
    sharding, device = chosen.sharding, chosen.facts.device
    kind, precision = sharding.distributed_type, resolve_precision(chosen.job, device)[0]
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
        "use_cpu": device.kind == "cpu" and kind in (NONE, *DATA_PARALLEL),
    }
    if kind == DEEPSPEED:
        del values["mixed_precision"]
        values["deepspeed_config"] = _deepspeed(sharding)
    if kind == FSDP:
        values["fsdp_config"] = fsdp_fields(sharding)
    if chosen.candidate.values.get(COMPILES):
        # The launcher says no to the training where its file does not say yes.
        values["dynamo_config"] = {"dynamo_use_regional_compilation": True}
    if fields := parallelism_fields(sharding):
        values["parallelism_config"] = fields
    return "# Written by autotune.\n" + yaml.safe_dump(values, sort_keys=True)


def _deepspeed(sharding: Sharding) -> dict[str, Any]:
    """Return the section of DeepSpeed: its file, whether models are built sharded, and a launcher
    where each machine starts its own processes."""
    return {
        "deepspeed_config_file": DEEPSPEED_FILE,
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": sharding.zero_stage == 3,
    }
