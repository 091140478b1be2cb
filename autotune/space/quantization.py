"""Quantised bases: the fields of TRL's ModelConfig that ask for one, and what it needs. Pure.

bitsandbytes' 4 bits as QLoRA has them (Dettmers et al., 2023): nf4, its constants quantised again;
or its 8 bits. It computes in the weights' `dtype`, as TRL does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.space.packages import QUANTISER
from autotune.units import format_bytes

FOUR_BITS: dict[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": True,
}
_BITS = 4, 8
_BYTES = {"float32": 4}
"""Of a weight in other dtypes than 16 bits."""
LARGE_SHARE = 0.25
"""Share of the weights from which on a plan says that they stay."""


def quantization(job: Job, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a configuration of the job lacks for its base to be quantised."""
    if job.tuning != "qlora" or config.get("load_in_8bit"):
        return {}
    return {name: config.get(name, value) for name, value in FOUR_BITS.items()}


def bits_of(config: Mapping[str, Any]) -> int | None:
    """Return the bits of a weight of the base; None where it is not quantised."""
    names = ("load_in_4bit", "load_in_8bit")
    return next((n for n, name in zip(_BITS, names, strict=True) if config.get(name)), None)


def not_installed(job: Job, facts: Facts) -> str | None:
    """Return what a job needs to train that is not installed here, as a sentence."""
    if job.tuning != "qlora" or facts.stack.assumed or QUANTISER not in facts.stack.absent:
        return None
    return f"`tuning: qlora` needs the package {QUANTISER}, which is not installed here"


def unquantised_note(job: Job, facts: Facts, candidates: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a plan says of a base that stays whole in large part: which weights, how many
    bytes."""
    layers = facts.model.unquantised
    count, dtype = sum(layers.values()), str(candidates[0].get("dtype", "bfloat16"))
    if job.tuning != "qlora" or count < LARGE_SHARE * facts.model.parameters:
        return None
    size = _BYTES.get(dtype, 2)
    order = sorted(layers.items(), key=lambda item: -item[1])
    largest = [f"{name} {format_bytes(n * size)}" for name, n in order if n > count / 10]
    return (
        f"bitsandbytes leaves {count / facts.model.parameters:.0%} of the weights in {dtype}, "
        f"{format_bytes(count * size)}: {', '.join(largest)}; it quantises linear layers only, "
        "without the output head"
    )
