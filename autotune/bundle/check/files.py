"""The files of a launch: the trainer's YAML, accelerate's, DeepSpeed's JSON. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import Problem
from autotune.facts.launch_fields import LaunchFields
from autotune.facts.stack import canonical_name
from autotune.job.methods import Method
from autotune.space.sharding.sharding import DEEPSPEED, FSDP, NONE

AUTO = "auto"
DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": True,
    "fp16": False,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "lr_scheduler_type": "linear",
    "optim": "adamw_torch_fused",
}
"""Defaults of TRL's trainers."""


@dataclass(frozen=True, kw_only=True)
class LaunchFiles:
    """The files of one launch, and their names as messages have them.

    Attributes:
        trainer: what the trainer reads.
        accelerate: what `accelerate launch` reads.
        deepspeed: what DeepSpeed reads; None where there is no such file.
        alone: whether there is no file of accelerate: `torchrun` or `deepspeed` starts the
            training, and the trainer reads DeepSpeed's file.
        method: of the training, where it is known.
        types: fields of the trainer, and their types as its source has them (`int | None`).
        fields: fields that the installed packages declare for the other two; empty: neither names
            nor types are checked.
    """

    trainer: Mapping[str, Any]
    accelerate: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None
    alone: bool = False
    method: Method | None = None
    trainer_file: str = "the trainer's file"
    accelerate_file: str = "accelerate.yaml"
    deepspeed_file: str = "deepspeed.json"
    types: Mapping[str, str] = field(default_factory=dict)
    fields: LaunchFields = field(default_factory=LaunchFields)

    @property
    def kind(self) -> str:
        """The kind of sharding, as accelerate names it (`distributed_type`)."""
        return str(self.accelerate.get("distributed_type", NONE))

    @property
    def processes(self) -> int:
        """The number of processes that train; 1 where no file says it (`counted`)."""
        value = number(self.accelerate.get("num_processes"))
        return int(value) if value is not None and value >= 1 else 1

    @property
    def counted(self) -> bool:
        """True if the number of processes that train is known."""
        value = number(self.accelerate.get("num_processes"))
        return (value is not None and value >= 1) or self.kind == NONE

    @property
    def by_deepspeed(self) -> bool:
        """True if DeepSpeed is asked for, by accelerate's file or by the trainer's."""
        return self.kind == DEEPSPEED or bool(self.trainer.get("deepspeed"))

    @property
    def by_fsdp(self) -> bool:
        """True if FSDP is asked for, by accelerate's file or by the trainer's."""
        return self.kind == FSDP or bool(self.trainer.get("fsdp"))

    @property
    def zero(self) -> Mapping[str, Any]:
        """DeepSpeed's section of sharding; where it has no file, what accelerate makes of its own
        section (`accelerate/utils/dataclasses.py`, `DeepSpeedPlugin`)."""
        if self.deepspeed is not None:
            return section(self.deepspeed, "zero_optimization")
        if self.kind != DEEPSPEED:
            return {}
        own = section(self.accelerate, "deepspeed_config")
        if own.get("deepspeed_config_file") is not None:
            return {}  # the file is missing
        return {
            "stage": own.get("zero_stage", 2),
            "offload_optimizer": {"device": own.get("offload_optimizer_device", "none")},
            "offload_param": {"device": own.get("offload_param_device", "none")},
        }

    @property
    def stage(self) -> int:
        """The stage of ZeRO; 0 where no file says it."""
        value = self.zero.get("stage")
        return 2 if value == AUTO else int(number(value) or 0)  # accelerate's default

    @property
    def stage_text(self) -> str:
        """The stage and the file that has it, as a clause."""
        if self.deepspeed is None:
            return f"{self.accelerate_file} has deepspeed_config.zero_stage: {self.stage}"
        return f"{self.deepspeed_file} has zero_optimization.stage: {self.stage}"

    def trains(self, name: str) -> Any:
        """Return the trainer's value: that of its file, under any of the field's names, or TRL's
        default; None where neither is known."""
        for written, value in self.trainer.items():
            if canonical_name(written) == name and value is not None:
                return value
        if name == "bf16":  # TRL's own rule
            return not self.trains("fp16")
        own = self.method.defaults if self.method else {}
        return own.get(name, DEFAULTS.get(name))

    def at_trainer(self, name: str, what: str, hint: str | None = None) -> Problem:
        """Return a problem with a field of the trainer."""
        written = next((n for n in self.trainer if canonical_name(n) == name), name)
        return Problem(where=f"{self.trainer_file}: {written}", what=what, hint=hint)

    def at_accelerate(self, name: str, what: str, hint: str | None = None) -> Problem:
        """Return a problem with a field of accelerate."""
        return Problem(where=f"{self.accelerate_file}: {name}", what=what, hint=hint)

    def at_deepspeed(self, name: str, what: str, hint: str | None = None) -> Problem:
        """Return a problem with a field of DeepSpeed."""
        return Problem(where=f"{self.deepspeed_file}: {name}", what=what, hint=hint)

    def at_offload(self, name: str, what: str, hint: str | None = None) -> Problem:
        """Return a problem with a field of offloading (`offload_param.device`), in the file that
        has it."""
        if self.deepspeed is None:
            return self.at_accelerate(f"deepspeed_config.{name.replace('.', '_')}", what, hint)
        return self.at_deepspeed(f"zero_optimization.{name}", what, hint)


def number(value: Any) -> float | None:
    """Return a number, also one that YAML reads as text (`2e-5`); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping inside a file; empty where there is none."""
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def value_at(data: Mapping[str, Any], path: str) -> Any:
    """Return the value that stands at `a.b.c`; None where there is none."""
    *parts, last = path.split(".")
    for part in parts:
        data = section(data, part)
    return data.get(last)


def shown(value: Any) -> str:
    """Return a value in a message, as it stands in a file."""
    if value is None:
        return "not there"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
