"""The files of a launch: the trainer's YAML, accelerate's, DeepSpeed's JSON. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import Problem
from autotune.facts.stack import canonical_name
from autotune.job.methods import Method
from autotune.space.sharding.sharding import DEEPSPEED, FSDP, NONE

AUTO = "auto"
DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "fp16": False,
    "lr_scheduler_type": "linear",
    "optim": "adamw_torch_fused",
}
"""Defaults of TRL's trainers that a rule asks for."""


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
        devices: how many processes train, where the caller says it.
    """

    trainer: Mapping[str, Any]
    accelerate: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None
    alone: bool = False
    method: Method | None = None
    devices: int | None = None
    trainer_file: str = "the trainer's file"
    accelerate_file: str = "accelerate.yaml"
    deepspeed_file: str = "deepspeed.json"

    @property
    def kind(self) -> str:
        """The kind of sharding, as accelerate names it (`distributed_type`)."""
        return str(self.accelerate.get("distributed_type", NONE))

    @property
    def count(self) -> int | None:
        """The number of processes that train; None: nobody says it."""
        value = number(self.devices or self.accelerate.get("num_processes"))
        if value is not None and value >= 1:
            return int(value)
        return 1 if self.kind == NONE and not self.alone else None

    @property
    def processes(self) -> int:
        """The number of processes that train; 1 where nobody says it."""
        return self.count or 1

    @property
    def by_deepspeed(self) -> bool:
        """True if DeepSpeed is asked for, by accelerate's file or by the trainer's."""
        return self.kind == DEEPSPEED or bool(self.trainer.get("deepspeed"))

    @property
    def by_fsdp(self) -> bool:
        """True if FSDP is asked for, by accelerate's file or by the trainer's."""
        return self.kind == FSDP or bool(self.trainer.get("fsdp"))

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

    def name_of(self, kind: str) -> str:
        """Return the name of one of the files: the trainer's, accelerate's or DeepSpeed's."""
        names = {"trainer": self.trainer_file, "accelerate": self.accelerate_file}
        return names.get(kind, self.deepspeed_file)

    def at(self, kind: str, field: str, what: str, hint: str | None = None) -> Problem:
        """Return a problem with a field of one of the files, or with a whole one."""
        name = self.name_of(kind)
        return Problem(where=f"{name}: {field}" if field else name, what=what, hint=hint)


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
        return "`null`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
