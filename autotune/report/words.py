"""A candidate in words: what a person tells apart, then what is not as the stack has it. Pure."""

from collections.abc import Sequence

from autotune.job.job import KnobValue
from autotune.plan.choices import CHECKPOINTING, differing
from autotune.space.bind import SearchSpace
from autotune.space.knobs import (
    ACCUMULATION,
    FLAG_WORDS,
    MICRO_BATCH,
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    Candidate,
    value_label,
)
from autotune.space.sharding.sharding import SHARDING_KNOBS, engine_name, sharding_of

_TUNINGS = {"full": "Full tuning", "lora": "LoRA", "qlora": "QLoRA"}
_APART = {MICRO_BATCH, ACCUMULATION, CHECKPOINTING, NUM_PROCESSES, *SHARDING_KNOBS}


def candidate_text(candidate: Candidate, space: SearchSpace, devices: int) -> str:
    """Return a candidate of a job of so many devices: `8 x 3 without checkpointing,
    group_by_length`."""
    head = f"{batch_text(candidate)}{_sharding_text(candidate, devices)}"
    if CHECKPOINTING in candidate.values:
        used = "with" if candidate[CHECKPOINTING] else "without"
        head = f"{head} {used} checkpointing"
    return ", ".join([head, *other_words(candidate, space)])


def batch_text(candidate: Candidate) -> str:
    """Micro-batch x accumulation."""
    return f"{candidate.micro_batch} x {candidate.gradient_accumulation_steps}"


def _sharding_text(candidate: Candidate, devices: int) -> str:
    sharding = sharding_of(candidate.values, devices)
    if devices == 1 and not sharding.in_group:
        return ""
    return f" on {sharding.num_processes} devices ({engine_name(sharding)})"


def other_words(candidate: Candidate, space: SearchSpace) -> list[str]:
    """Return the other differences from the stack's defaults, and the recipe that varies."""
    knobs = differing(candidate, space.default(), space)
    varied = [knob.name for knob in space.free_knobs if knob.kind == "recipe"]
    knobs |= {name: candidate[name] for name in varied if name in candidate.values}
    return [_word(name, value) for name, value in knobs.items() if name not in _APART]


def _word(name: str, value: KnobValue) -> str:
    if name in FLAG_WORDS:
        return FLAG_WORDS[name] if value else f"no {FLAG_WORDS[name]}"
    if name == TENSOR_PARALLEL:
        return f"vLLM on {value_label(value)}"
    if isinstance(value, str):
        return value
    return f"{name} {value_label(value)}"


def tuning_text(tuning: str) -> str:
    """Return a tuning as a sentence begins with it: `Full tuning`, `LoRA`."""
    return _TUNINGS.get(tuning, tuning)


def install_text(packages: Sequence[str]) -> str:
    """Return `Install on the training machine: flash-attn.`"""
    return f"Install on the training machine: {', '.join(packages)}."
