"""Tables and sentences of results, for people. Pure: records in, rich renderables out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.markup import escape
from rich.table import Table

from autotune.cli.views.advice import advice_lines
from autotune.estimate.estimate import Estimate
from autotune.probe.protocol import Measurement
from autotune.run.session import Result
from autotune.search.job_time import Saving
from autotune.search.record import Record
from autotune.search.repeats import QUIET, repeatability
from autotune.space.bind import SearchSpace
from autotune.space.knobs import (
    ACCUMULATION,
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
        + _busy_machine(measurement)
        + (
            f", peak {format_bytes(measurement.peak_memory_bytes)}"
            if measurement.peak_memory_bytes
            else ""
        )
    )


def _busy_machine(measurement: Measurement) -> str:
    share = measurement.processor_wait_share
    if share is None or share <= QUIET:
        return ""
    return f" (the machine was busy: {100 * share:.0f}% of the time waiting for a core)"


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
        return str(value)
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


_TITLES = {"recommended": "recommended", "interrupted": "best so far"}


def result_lines(result: Result, bundle: str) -> list[str]:
    """The end of a run, as lines of text."""
    if result.outcome == "nothing_fits":
        return _nothing_fits_lines(result)
    if result.recommendation is None:
        return ["no stable candidate has been measured yet"]
    chosen = result.recommendation.chosen
    lines = [f"{_TITLES[result.outcome]}: probe {chosen.number}"]
    lines += [
        f"  {name}: {value_label(value)}" for name, value in sorted(chosen.candidate.knobs.items())
    ]
    lines += [f"- {reason}" for reason in result.recommendation.reasons]
    lines += [f"- {line}" for line in search_lines(result)]
    if result.outcome == "recommended":
        verification = result.verification.plain() if result.verification else None
        lines += [verification_line(verification), f"bundle: {bundle}"]
    return lines


def verification_line(verification: Mapping[str, Any] | None) -> str:
    """Whether a bundle has been launched, and what came of it; None: it has not."""
    if verification is None:
        return "NOT verified: it was not launched yet; `autotune verify` launches it"
    return f"{'verified' if verification['verified'] else 'NOT verified'}: {verification['reason']}"


def search_lines(result: Result) -> list[str]:
    """What the search saved, what it needed no probe for, and how well its probes repeat."""
    lines = [] if result.saving is None else [result.saving.sentence()]
    return [*lines, *skipped_lines(result.skipped), *repeat_lines(result.records)]


def skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """Why candidates needed no probe."""
    counts = Counter(skipped.values())
    return [f"no probe needed for {n} candidate(s): {reason}" for reason, n in counts.items()]


def repeat_lines(records: Sequence[Record]) -> list[str]:
    """How far probes of the same candidate were apart."""
    repeats = repeatability(records)
    if repeats.measured_sd is None:
        return []
    return [
        f"probes of one candidate differ by {100 * repeats.measured_sd:.1f}% (standard deviation, "
        f"{repeats.repeats} repeated)"
    ]


def cost_lines(records: Sequence[Record]) -> list[str]:
    """Where the time of a probe goes: medians over those that ended ok."""
    ended = (m for r in records if (m := r.measurement) is not None and m.outcome == "ok")
    measurements = [m for m in ended if m.stages_s]
    if not measurements:
        return []
    names = ("build", "train")
    seconds = {name: median(m.stages_s.get(name, 0.0) for m in measurements) for name in names}
    rest = median(m.seconds - sum(m.stages_s.get(n, 0.0) for n in names) for m in measurements)
    return [
        f"a probe took {median(m.seconds for m in measurements):.1f} s (median): "
        f"{seconds['build']:.2f} s to build the model and the trainer, {seconds['train']:.1f} s of "
        f"training steps, {rest:.2f} s for everything else"
    ]


def ending_lines(ending: Mapping[str, Any] | None) -> list[str]:
    """Why the search ended, and what it saved."""
    if ending is None:
        return []
    saving = ending.get("saving")
    return [
        f"the search ended: {ending['stop_reason']}",
        *([] if saving is None else [Saving(**saving).sentence()]),
    ]


def _nothing_fits_lines(result: Result) -> list[str]:
    nothing = result.nothing_fits
    assert nothing is not None
    lines = ["nothing fits", *([] if nothing.why is None else [f"- {nothing.why}"])]
    if nothing.nearest is None or nothing.short_bytes is None:
        for reason, numbers in nothing.rejected.items():
            lines.append(f"- {reason}: probe {', '.join(map(str, numbers))}")
        return lines
    at_least = "at least " if nothing.short_is_lower_bound else ""
    knobs = nothing.nearest.candidate
    lines.append(
        f"nearest: probe {nothing.nearest.number} "
        f"({knobs[MICRO_BATCH]}x{knobs.knobs[ACCUMULATION]}), "
        f"{at_least}{format_bytes(nothing.short_bytes)} short"
    )
    fitting = [change for change in result.tried if change.fits]
    for change in fitting:
        lines.append(f"- fits with {change.text}: {describe_measurement(change.measurement)}")
    if result.tried and not fitting:
        texts = "; ".join(change.text for change in result.tried)
        lines.append(f"- no single change made it fit; tried: {texts}")
    if result.advice is not None:
        lines += advice_lines(result.advice)
    return lines
