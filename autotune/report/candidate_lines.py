"""A candidate, and how its probe ended, in a few words for one line. Pure."""

from collections.abc import Sequence

from autotune.probe.protocol import Measurement
from autotune.report.words import checkpointing_cell
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.knobs import (
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
"""Knobs that `_spread` has words of its own for."""


def describe(candidate: Candidate, free: Sequence[str]) -> str:
    """Return a candidate in a few words: its batch, then the knobs that vary."""
    batch = f"{candidate.micro_batch}x{candidate.gradient_accumulation_steps}"
    names = [name for name in free if name not in (MICRO_BATCH, *_SPREAD)]
    words = [word for name in names if (word := _word(name, candidate[name]))]
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


def _word(name: str, value: object) -> str:
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
