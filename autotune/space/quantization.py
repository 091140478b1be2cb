"""Quantised bases: the fields of TRL's ModelConfig that ask for one, and what it needs. Pure.

bitsandbytes' 4 bits as QLoRA has them (Dettmers et al., 2023): nf4, its constants quantised again;
or its 8 bits. It computes in the weights' `dtype`, as TRL does.
"""

from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.job import Job

FOUR_BITS: dict[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": True,
}
PACKAGE = "bitsandbytes"
_BITS = 4, 8


def quantization(job: Job, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a configuration of the job lacks for its base to be quantised."""
    if job.tuning != "qlora" or config.get("load_in_8bit"):
        return {}
    return {name: config.get(name, value) for name, value in FOUR_BITS.items()}


def bits_of(config: Mapping[str, Any]) -> int | None:
    """Bits of a weight of the base; None where it is not quantised."""
    names = ("load_in_4bit", "load_in_8bit")
    return next((n for n, name in zip(_BITS, names, strict=True) if config.get(name)), None)


def not_installed(job: Job, facts: Facts) -> str | None:
    """What a job needs to train that is not installed here, as a sentence."""
    if job.tuning != "qlora" or facts.stack.bitsandbytes:
        return None
    return f"`tuning: qlora` needs the package {PACKAGE}, which is not installed here"
