"""What the files of a bundle say, for writing it in another form. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml

from autotune.bundle.check.files import LaunchFiles, number
from autotune.errors import user_error
from autotune.job.methods import METHODS, Method
from autotune.space.checkpointing import CHECKPOINTING, GRID, value_in
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import DEEPSPEED, FSDP

_EXPORT = re.compile(r'export (\w+)="\$\{\1-([^"}]*)\}"')
_LAUNCHES = ("launch.sh", "launch_nodes.sh")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A bundle.

    Attributes:
        method: of the training.
        config: the trainer's file.
        accelerate: accelerate's file.
        environment: variables that its launch sets, but for those that choose devices.
        texts: all files.
    """

    method: Method
    config: Mapping[str, Any]
    accelerate: Mapping[str, Any]
    environment: Mapping[str, str]
    texts: Mapping[str, str]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Return a bundle's files by name.

        Raises:
            UserError: they are not those of a bundle.
        """
        method = next((m for m in METHODS.values() if m.config_file in texts), None)
        if method is None or "accelerate.yaml" not in texts:
            raise user_error("not a bundle: the trainer's YAML beside accelerate.yaml is missing")
        script = "\n".join(texts.get(name, "") for name in _LAUNCHES)
        return cls(
            method=method,
            config=_mapping(texts[method.config_file]),
            accelerate=_mapping(texts["accelerate.yaml"]),
            environment={n: v for n, v in _EXPORT.findall(script) if not n.startswith("CUDA_")},
            texts=texts,
        )

    @property
    def processes(self) -> int:
        """Devices that train, of all machines."""
        files = LaunchFiles(trainer={}, accelerate=self.accelerate, deepspeed=None)
        return files.processes

    @property
    def machines(self) -> int:
        """Machines that train together."""
        value = number(self.accelerate.get("num_machines"))
        return int(value) if value is not None and value >= 1 else 1

    @property
    def each(self) -> int:
        """Devices of one machine.

        Raises:
            UserError: machines cannot share the processes evenly.
        """
        count, rest = divmod(self.processes, self.machines)
        if rest or not count:
            what = f"{self.processes} processes cannot be divided among {self.machines} machines"
            raise user_error(what, where="--format")
        return count

    @property
    def kind(self) -> str:
        """The kind of sharding, as accelerate names it (`distributed_type`)."""
        return str(self.accelerate.get("distributed_type", "NO"))

    @property
    def deepspeed(self) -> str | None:
        """DeepSpeed's file, where it has one."""
        return self.texts.get(DEEPSPEED_FILE) if self.kind == DEEPSPEED else None

    @property
    def uses_fsdp(self) -> bool:
        """True if FSDP divides the weights."""
        return self.kind == FSDP

    @property
    def tuning(self) -> str:
        """The tuning: full, lora or qlora."""
        config = self.config
        if not config.get("use_peft"):
            return "full"
        return "qlora" if config.get("load_in_4bit") or config.get("load_in_8bit") else "lora"

    @property
    def checkpoints(self) -> bool:
        """True if activations are computed again, not kept."""
        return self.checkpointing is not False

    @property
    def checkpointing(self) -> Any:
        """The value of the knob."""
        return value_in({CHECKPOINTING: True, **self.config})

    @property
    def modules(self) -> list[str]:
        """The modules that get an adapter; none: every linear layer."""
        named = self.config.get("lora_target_modules", "all-linear")
        return [] if named in ("all-linear", ["all-linear"]) else list(named)


@dataclass(frozen=True, kw_only=True)
class Formatted:
    """A bundle in another form.

    Attributes:
        files: name -> text; the first is what the tool is given.
        lost: fields that the other form cannot say, and why.
    """

    files: Mapping[str, str]
    lost: Mapping[str, str]


def _mapping(text: str) -> dict[str, Any]:
    data = yaml.safe_load(text)
    return data if isinstance(data, dict) else {}


def not_said(bundle: Launched) -> dict[str, str]:
    """Return the variables that a bundle's launch sets beside its files, and checkpointing that
    others do not have, as fields that are lost."""
    lost = {
        name: f"set it where the training starts: {name}={value}"
        for name, value in bundle.environment.items()
    }
    if bundle.checkpointing in GRID:
        lost[CHECKPOINTING] = f"`{bundle.checkpointing}` is not carried over: all layers are, here"
    return lost
