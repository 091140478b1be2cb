"""The description of a trainer, for a probe or a trace, and the place of its process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.process.messages import Message
from autotune.space.sharding.sharding import Sharding

OF_THE_MACHINE = frozenset({"tf32", "bf16_full_eval", "fp16_full_eval", "ddp_backend"})
"""Fields that transformers judges by the machine on which it reads them: of a plan for another one,
and of a process that is no rank, they are left out."""


class Unsupported(Exception):
    """This stack cannot do what the candidate asks.

    Args:
        knobs: that it is due to, where other knobs make no difference.
    """

    def __init__(self, message: str, knobs: Sequence[str] = ()):
        super().__init__(message)
        self.knobs = list(knobs)


@dataclass(frozen=True, kw_only=True)
class TrainerSpec(Message):
    """A candidate as a trainer has it.

    Attributes:
        config: the flat TRL configuration, exactly as the bundle would have it.
        model_path: a model folder with a config and a tokenizer.
        weights: `real`, or `random` where only their shapes are here.
        device_kind: `cuda` or `cpu`.
        sharding: fields of `space.sharding.Sharding`: one process for each device, all of them on
            this one candidate; none: one process.
        deepspeed: DeepSpeed's configuration, exactly as the bundle would have it.
    """

    method: str
    config: dict[str, Any]
    model_path: str
    weights: str = "random"
    device_kind: str = "cpu"
    sharding: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] | None = None

    @property
    def parsed_sharding(self) -> Sharding:
        """The sharding over processes that the plain fields in `sharding` describe."""
        return Sharding(**self.sharding)


@dataclass(frozen=True, kw_only=True)
class Part(Message):
    """The part of a training that one of several machines has.

    Attributes:
        node: the number of the machine.
        host: the address of the first.
        port: where all ranks meet on it; 0: it chooses one, and an event `MEETS` names it.
    """

    node: int = 0
    nodes: int = 1
    host: str = "127.0.0.1"
    port: int = 0


MEETS = "meets"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a process among the ranks of a probe.

    Attributes:
        local_rank, local_count: among those on its machine.
        host, port: of the rendezvous of all ranks.
        listener: descriptor of the bound socket on which the first rank waits for the others.
    """

    rank: int
    count: int
    local_rank: int
    local_count: int
    host: str
    port: int
    listener: int | None
