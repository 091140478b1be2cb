"""What a trainer is made of: the message that asks for a training."""

from dataclasses import dataclass, field
from typing import Any

from autotune.process.messages import Message
from autotune.space.sharding.sharding import Sharding
from autotune.space.vllm.memory import VllmShare


class Unsupported(Exception):
    """This stack cannot do what the candidate asks."""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Message):
    """Train a candidate for a few steps and measure."""

    method: str
    config: dict[str, Any]
    """The flat TRL configuration, exactly as the bundle would have it."""
    environment: dict[str, str]
    weights: str
    model_path: str
    device_kind: str
    device_index: int
    memory_limit_bytes: int | None
    threads: int
    rows: str
    """Folder of the tokenized rows."""
    rows_total: int
    rows_sampled: bool
    global_batch: int
    seed: int
    to_beat_tokens_per_s: float | None = None
    """The fastest so far: a candidate that comes near it is measured longer."""
    vllm_bytes: int = 0
    """What vLLM will have of the device while it generates; it is not run."""
    vllm_asleep_bytes: int | None = None
    """What it will have while the training computes; None: the same."""
    sharding: dict[str, Any] = field(default_factory=dict)
    """Fields of `space.sharding.Sharding`: one process for each device, all of them on this one
    candidate; none: one process."""
    peers: list[int] = field(default_factory=list)
    """NVML's numbers of the GPUs of the other ranks."""
    deepspeed: dict[str, Any] | None = None
    """DeepSpeed's configuration, exactly as the bundle would have it."""
    host_limit_bytes: int | None = None
    """What all processes may take of the host's memory together; None: any amount."""

    @property
    def parsed_sharding(self) -> Sharding:
        """How the training is sharded over processes, of the plain fields in `sharding`."""
        return Sharding(**self.sharding)

    @property
    def process_limit_bytes(self) -> int | None:
        """What the training may take beside it."""
        return None if (limit := self.memory_limit_bytes) is None else self.vllm.left_of(limit)

    @property
    def vllm(self) -> VllmShare:
        """What vLLM will have; nothing where it has no bytes."""
        return VllmShare(awake_bytes=self.vllm_bytes, asleep_bytes=self.vllm_asleep_bytes)
