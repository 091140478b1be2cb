"""Quantised bases: the fields of TRL's ModelConfig that ask for one, and what it needs. Pure.

bitsandbytes' 4 bits as QLoRA has them (Dettmers et al., 2023): nf4, its constants quantised again;
or its 8 bits. It computes in the weights' `dtype`, as TRL does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.facts import Facts
from autotune.facts.model import ModelFacts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.attention import KERNELS
from autotune.space.packages import QUANTISER
from autotune.space.sharding.sharding import DEEPSPEED, DISTRIBUTED_TYPE, FSDP, Sharding
from autotune.units import format_bytes

FOUR_BITS: dict[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": True,
}
STORAGE = "bnb_4bit_quant_storage"
"""The type as which packed weights are stored; bitsandbytes' own is uint8."""
_BITS = 4, 8
_BYTES = {"float32": 4}
"""Of a weight in other dtypes than 16 bits."""
LARGE_SHARE = 0.25
"""Share of the weights from which on a plan says that they stay."""


def quantization(job: Job, config: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    """Return the fields that a configuration of the job lacks for its base to be quantised. An
    engine that divides weights divides numbers of one type: packed ones are stored as such."""
    if job.tuning != "qlora" or config.get("load_in_8bit"):
        return {}
    fields = dict(FOUR_BITS)
    if sharding.distributed_type in (DEEPSPEED, FSDP):
        fields[STORAGE] = config.get("dtype", "float32")
    return {name: config.get(name, value) for name, value in fields.items()}


def base_bytes(model: ModelFacts, config: Mapping[str, Any]) -> int | None:
    """Return the bytes of a quantised base as transformers loads it: what stays whole, packed
    weights and their maxima; None where it is not quantised.

    unquantised x width + packed x (bits / 8 + maxima): of 4 bits a maximum in a byte for each 64
    weights and a float32 for each 256 of these, or, not quantised again, in float32 for each 64.
    Source: bitsandbytes 0.50, `functional.py`. Left out: codes, scales of rows (8 bits), below
    0.1%.
    """
    bits = bits_of(config)
    if bits is None:
        return None
    whole = min(sum(model.unquantised.values()), model.parameters)
    nested = config.get("use_bnb_nested_quant")
    maxima = 0.0 if bits == 8 else (1 + 4 / 256) / 64 if nested else 4 / 64
    packed = (model.parameters - whole) * (bits / 8 + maxima)
    return round(whole * _BYTES.get(str(config.get("dtype")), 2) + packed)


def bits_of(config: Mapping[str, Any]) -> int | None:
    """Return the bits of a weight of the base; None where it is not quantised."""
    names = ("load_in_4bit", "load_in_8bit")
    return next((n for n, name in zip(_BITS, names, strict=True) if config.get(name)), None)


def trains_wide(config: Mapping[str, Any]) -> bool:
    """True if what is trained is in float32: adapters are beside any base that is not quantised
    (PEFT 0.21, `cast_adapter_dtype`)."""
    adapters = bool(config.get("use_peft")) and bits_of(config) is None
    return adapters or config.get("dtype", "float32") == "float32"


def not_installed(job: Job, facts: Facts) -> str | None:
    """Return what a job needs to train that is not installed here, as a sentence."""
    if job.tuning != "qlora" or facts.stack.assumed or QUANTISER not in facts.stack.absent:
        return None
    return f"`tuning: qlora` needs the package {QUANTISER}, which is not installed here"


def divides_base(job: Job) -> bool:
    """True if FSDP2 and ZeRO-3 divide the job's base: one in 4 bits is, unless a method generates
    from it. A job that compares 4 and 8 bits has whole copies."""
    eight = True in [job.fixed.get("load_in_8bit"), *job.recipe.get("load_in_8bit", [])]
    return job.tuning != "qlora" or not (eight or METHODS[job.method].online)


def loading_note(job: Job, facts: Facts, candidates: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a plan says where an engine may divide a quantised base."""
    divided = [c for c in candidates if c.get(DISTRIBUTED_TYPE) in (DEEPSPEED, FSDP)]
    if job.tuning != "qlora" or not divided:
        return None
    base = base_bytes(facts.model, {**FOUR_BITS, **divided[0]}) or 0
    return (
        f"transformers loads a quantised base whole on each device, {format_bytes(base)}, before "
        "FSDP2 or ZeRO-3 divides it: no sharding needs less"
    )


def packed_note(facts: Facts, candidates: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a plan says of a checkpoint that is unpacked: what is downloaded, what the
    weights take then. MXFP4: 4 bits a weight, and 8 for each 32."""
    model = facts.model
    if model.dequantized_from is None:
        return None
    packed = sum(model.unquantised.get(name, 0) for name in model.expert_parameters)
    download = 2 * (model.parameters - packed) + packed * 17 // 32
    dtype = str(candidates[0].get("dtype", "bfloat16"))
    return (
        f"the checkpoint holds its experts in {model.dequantized_from.upper()}, "
        f"{format_bytes(download)} to download; training unpacks them, so that the weights take "
        f"{format_bytes(model.parameters * _BYTES.get(dtype, 2))} in {dtype}. "
        f"On a GPU transformers does so only where the package {KERNELS} is not installed: with it "
        "they stay packed, and its Trainer refuses to train them"
    )


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
