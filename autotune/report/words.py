"""A candidate, and how its probe ended, in words: what a person tells apart, then what is not as
the stack has it; and in a few words, for one line. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from autotune.job.job import KnobValue
from autotune.plan.choices import differing
from autotune.probe.protocol import Measurement
from autotune.space.bind import SearchSpace
from autotune.space.checkpointing import CHECKPOINTING, EVERY, OFFLOAD, SELECTIVE
from autotune.space.knobs import (
    ACCUMULATION,
    FLAG_WORDS,
    MICRO_BATCH,
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    Candidate,
    value_label,
)
from autotune.space.sharding.sharding import (
    CP_SIZE,
    SHARDING_KNOBS,
    SP_SIZE,
    engine_name,
    sharding_of,
)
from autotune.units import format_bytes

_SPREAD = (NUM_PROCESSES, *SHARDING_KNOBS, CP_SIZE, SP_SIZE)
"""Knobs of how a candidate is spread over devices."""
_TUNINGS = {"full": "Full tuning", "lora": "LoRA", "qlora": "QLoRA"}
_APART = {MICRO_BATCH, ACCUMULATION, CHECKPOINTING, *_SPREAD}

_MEANINGS = (
    (r"\d+ ?x ?\d+", "rows in a forward pass x passes in an optimizer step, on each device"),
    (r"ckpt|checkpointing", "activations are computed again instead of kept: less memory, slower"),
    (r"1/[24]", "of every second or fourth layer only"),
    (r"sel|selective checkpointing", "but for the results of attention, which are kept"),
    (r"offl|offloaded checkpointing", "of all layers, whose inputs wait in the host's memory"),
    (r"chunked_nll", "the usual loss, made for a part of the tokens at a time: less memory"),
    (r"nll", "the usual loss (negative log-likelihood)"),
    (r"Liger kernels", "fused operators of the package liger-kernel: faster, less memory"),
    (r"padding-free", "rows lie one behind the other, without padding between them"),
    (r"packing", "short rows are put together until they are as long as the longest may be"),
    (r"group_by_length", "rows of about the same length come together: less padding"),
    (r"activation offloading|activations offloaded", "activations wait in the host's memory"),
    (r"expandable segments", "torch's allocator can extend its blocks: less memory is lost"),
    (r"torch\.compile", "the model is compiled first: a slow start, faster steps"),
    (r"sdpa", "torch's own attention, without another package"),
    (r"flash_attention_\d", "attention of a package of its own, for flattened rows"),
    (r"ZeRO-[0-3]", "DeepSpeed divides optimizer (1), gradients (2) and weights (3)"),
    (r"FSDP2?", "torch divides weights, gradients and optimizer among the devices"),
    (r"DDP", "each device holds a whole copy of the model"),
    (r"p\(oom\)", "how likely it is to run out of memory, from 0 to 1"),
    (r"MFU", "the share of the GPU's peak rate that the model's own computation reaches"),
)
"""A pattern of a term, and what the term means."""


def legend(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return the terms that occur in some texts, as they stand there first, each with its
    meaning."""
    text = "\n".join(texts)
    found = ((re.search(rf"(?<!\w)(?:{term})(?!\w)", text), what) for term, what in _MEANINGS)
    return [(match[0], what) for match, what in found if match is not None]


def candidate_text(candidate: Candidate, space: SearchSpace, devices: int) -> str:
    """Return a candidate of a job of so many devices: `8 x 3 without checkpointing,
    group_by_length`."""
    head = f"{batch_text(candidate)}{_sharding_text(candidate, devices)}"
    if CHECKPOINTING in candidate.values:
        head = f"{head} {checkpointing_phrase(candidate[CHECKPOINTING])}"
    return ", ".join([head, *other_words(candidate, space)])


def batch_text(candidate: Candidate) -> str:
    """Return micro-batch x accumulation."""
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


_LEVELS = {None: "-", True: "yes", False: "no", SELECTIVE: "sel", OFFLOAD: "offl"}


def checkpointing_cell(value: Any) -> str:
    """Return a level of checkpointing as a table has it."""
    return f"1/{EVERY[value]}" if value in EVERY else _LEVELS[value]


def checkpointing_phrase(value: Any) -> str:
    """Return a level of checkpointing as it stands behind a batch."""
    words = {SELECTIVE: "selective ", OFFLOAD: "offloaded "}
    kind = f"{checkpointing_cell(value)} " if value in EVERY else words.get(value, "")
    return f"with {kind}checkpointing" if value else "without checkpointing"


def describe(candidate: Candidate, free: Sequence[str]) -> str:
    """Return a candidate in a few words: its batch, then the knobs that vary."""
    batch = f"{candidate.micro_batch}x{candidate.gradient_accumulation_steps}"
    names = [name for name in free if name not in (MICRO_BATCH, *_SPREAD)]
    words = [word for name in names if (word := _short_word(name, candidate[name]))]
    return " ".join([batch, *_spread(candidate, free), *words])


def _spread(candidate: Candidate, free: Sequence[str]) -> list[str]:
    """Return how a candidate is spread, and over how many devices, where that varies."""
    if not any(name in _SPREAD for name in free):
        return []
    sharding = sharding_of(candidate.values, 2)
    if NUM_PROCESSES in free and not sharding.in_group:
        return ["on 1"]
    return [
        *([f"on {candidate[NUM_PROCESSES]}"] if NUM_PROCESSES in free else []),
        engine_name(sharding),
    ]


_FLAGS = {
    CHECKPOINTING: "checkpointing",
    "padding_free": "padding-free",
    "use_liger_kernel": "liger",
    "activation_offloading": "offloading",
    "expandable_segments": "expandable",
    "torch_compile": "compile",
}


def _short_word(name: str, value: object) -> str:
    if name == CHECKPOINTING and value:
        return "checkpointing" if value is True else f"checkpointing {checkpointing_cell(value)}"
    if name in _FLAGS:
        return _FLAGS[name] if value else ""
    label = value_label(value)  # type: ignore[arg-type]
    if name == TENSOR_PARALLEL:
        return f"vllm on {label}"
    numbered = isinstance(value, int | float) or value is None or name == "lora_target_modules"
    return f"{name}={label}" if numbered else label


def describe_measurement(measurement: Measurement) -> str:
    """Return how a probe ended, in a line."""
    if measurement.outcome == "oom" and measurement.missing_bytes is not None:
        return f"oom: at least {format_bytes(measurement.missing_bytes)} short"
    if measurement.outcome == "host_oom" and measurement.missing_bytes is not None:
        shortfall = format_bytes(measurement.missing_bytes)
        return f"host_oom: at least {shortfall} of the host's memory short"
    if measurement.outcome != "ok":
        return f"{measurement.outcome}: {measurement.reason}"
    noise = measurement.relative_uncertainty
    return (
        f"{measurement.tokens_per_s:.0f} tokens/s"
        + (f" +-{100 * noise:.1f}%" if noise is not None else "")
        + (
            f", peak {format_bytes(measurement.peak_memory_bytes)}"
            if measurement.peak_memory_bytes
            else ""
        )
    )
