"""What a child has found out by importing the training stack. Plain."""

from dataclasses import dataclass, field

from autotune.process.messages import Message

TRAINERS = "autotune.process.preload"
"""Imports what a probe uses of TRL and transformers, which import that at its first use."""


@dataclass(frozen=True, kw_only=True)
class ImportRequest(Message):
    """What a child is to import, and on which GPUs it is to compute.

    Attributes:
        modules: in this order; after `torch` nothing else is tried where it fails.
        gpus: torch's numbers of GPUs.
    """

    modules: tuple[str, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TorchFacts(Message):
    """The installed build of torch.

    Attributes:
        cuda: which CUDA it is built for; None: for none.
        hip: which ROCm.
        architectures: which GPUs its kernels are compiled for: `sm_90`, `compute_90`.
        nccl: the version of NCCL in it.
        trials: what went wrong as each GPU was computed on; empty: nothing.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    nccl: str | None = None
    trials: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImportReply(Message):
    """What became of it.

    Attributes:
        problems: of each module that was imported, why it cannot be; empty: it can.
        ending: how the child ended before its time, and where; empty: it did not.
    """

    problems: dict[str, str]
    torch: TorchFacts | None = None
    ending: str = ""
