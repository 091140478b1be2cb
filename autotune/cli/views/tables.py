"""Tables of candidates and probes, for people. Pure: records in, rich renderables out."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from autotune.estimate.estimate import Estimate
from autotune.probe.protocol import Measurement
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.space.knobs import (
    MICRO_BATCH,
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    Candidate,
    value_label,
)
from autotune.space.sharding.sharding import SHARDING_KNOBS, engine_name, sharding_of
from autotune.units import format_bytes, format_seconds

_SPREAD = (NUM_PROCESSES, *SHARDING_KNOBS)
"""Knobs that `_spread` has words of its own for."""


def describe(candidate: Candidate, free: Sequence[str]) -> str:
    """A candidate in a few words: its batch, then the knobs that vary."""
    batch = f"{candidate.micro_batch}x{candidate.gradient_accumulation_steps}"
    names = [name for name in free if name not in (MICRO_BATCH, *_SPREAD)]
    words = [word for name in names if (word := _word(name, candidate[name]))]
    return " ".join([batch, *_spread(candidate, free), *words])


def _spread(candidate: Candidate, free: Sequence[str]) -> list[str]:
    """How a candidate is spread, and over how many devices, where that varies."""
    if not any(name in _SPREAD for name in free):
        return []
    sharding = sharding_of(candidate.values, 2)
    if NUM_PROCESSES in free and not sharding.in_group:
        return ["on 1"]
    groups = sharding.zero_hpz_partition_size
    return [
        *([f"on {candidate[NUM_PROCESSES]}"] if NUM_PROCESSES in free else []),
        engine_name(sharding),
        *([f"in groups of {groups}"] if groups > 1 else []),
    ]


_FLAGS = {
    "gradient_checkpointing": "checkpointing",
    "padding_free": "padding-free",
    "use_liger_kernel": "liger",
    "activation_offloading": "offloading",
    "expandable_segments": "expandable",
    "torch_compile": "compile",
}


def _word(name: str, value: object) -> str:
    if name in _FLAGS:
        return _FLAGS[name] if value else ""
    label = value_label(value)  # type: ignore[arg-type]
    if name == TENSOR_PARALLEL:
        return f"vllm on {label}"
    numbered = isinstance(value, int | float) or value is None or name == "lora_target_modules"
    return f"{name}={label}" if numbered else label


def describe_measurement(measurement: Measurement) -> str:
    """How a probe ended, in a line."""
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


def records_table(
    records: Sequence[Record], free: Sequence[str], estimates: Mapping[str, Estimate]
) -> Table:
    """Every probe, in order; what was expected of it beside it, where there are estimates."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("probe", "right"), ("candidate", "left"), ("outcome", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("tokens/s", "+-", "padding", "peak", "took"):
        table.add_column(name, justify="right")
    for name in ("expected tokens/s", "expected peak") if estimates else ():
        table.add_column(name, justify="right")
    for record in records:
        expected = _expected(estimates.get(record.candidate.key)) if estimates else []
        table.add_row(*_row(record, free), *expected)
    return table


def _expected(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return ["", ""]
    speed = "" if estimate.tokens_per_s is None else f"{estimate.tokens_per_s:.0f}"
    return [speed, format_bytes(estimate.peak_memory_bytes)]


def _row(record: Record, free: Sequence[str]) -> list[str]:
    m = record.measurement
    head = [str(record.number), escape(describe(record.candidate, free))]
    if m is None:
        return [*head, "running", "", "", "", "", ""]
    return [
        *head,
        m.outcome,
        f"{m.tokens_per_s:.0f}" if m.tokens_per_s is not None else "",
        f"{100 * m.relative_uncertainty:.1f}%" if m.relative_uncertainty is not None else "",
        f"{100 * m.padding_share:.0f}%" if m.padding_share is not None else "",
        format_bytes(m.peak_memory_bytes) if m.peak_memory_bytes is not None else "",
        format_seconds(m.seconds),
    ]


def measurement_table(candidate: Candidate, measurement: Measurement) -> Table:
    """One probe in full."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("candidate", escape(_all_knobs(candidate)))
    table.add_row("outcome", f"{measurement.outcome}: {escape(measurement.reason)}")
    for name, value in measurement.plain().items():
        if name in {"outcome", "reason", "failure", "stages_s", "processes"} or value is None:
            continue
        table.add_row(name, _figure(name, value))
    for stage, seconds in measurement.stages_s.items():
        table.add_row(f"stage {stage}", format_seconds(seconds))
    return table


def _all_knobs(candidate: Candidate) -> str:
    return ", ".join(f"{n}={value_label(v)}" for n, v in sorted(candidate.knobs.items()))


def _figure(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s") and not name.endswith("per_s") or name == "seconds":
        return format_seconds(value)
    if name in {"relative_uncertainty", "padding_share", "processor_wait_share"}:
        return f"{100 * value:.1f}%"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def space_table(space: SearchSpace) -> Table:
    """The knobs of a bound space."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("knob", "kind", "values", "why"):
        table.add_column(name, overflow="fold")
    for knob in space.knobs:
        values = " | ".join(value_label(value) for value in knob.values)
        table.add_row(escape(knob.name), knob.kind, escape(values), escape(knob.why))
    return table
