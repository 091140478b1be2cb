"""The bundle's `README.md`: why this configuration, and what to expect of it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.duration import Work
from autotune.emit.launch import flags
from autotune.recommend import Ranked, Recommendation
from autotune.space.knobs import value_label
from autotune.units import format_bytes, format_seconds


def readme(
    recommendation: Recommendation,
    *,
    model: str,
    device: str,
    work: Work,
    missing: Sequence[str],
    assumed: Sequence[str],
    verification: dict[str, Any] | None,
    costs: Mapping[str, Sequence[Mapping[str, Any]]],
    space_size: int,
    probes: int,
) -> str:
    """The bundle's page as Markdown text."""
    chosen = recommendation.chosen
    knobs = chosen.candidate.knobs
    lines = [
        f"# {model}: recommended configuration",
        "",
        f"Found by autotune on {device}: {probes} probes out of {space_size} candidates.",
        f"Launch it with `bash launch.sh{flags(missing)}`; arguments are passed on to TRL.",
        *(f"The job does not say it: {one}." for one in assumed),
        "",
        "## Why this one",
        "",
        *[f"- {reason}" for reason in recommendation.reasons],
        "",
        "## What to expect",
        "",
        *_expectations(chosen, work),
        "",
        "## Verified",
        "",
        *_verified(verification),
        "",
        "## The knobs",
        "",
        "| knob | value |",
        "|---|---|",
        *[f"| `{name}` | `{value_label(knobs[name])}` |" for name in sorted(knobs)],
    ]
    for knob, values in costs.items():
        lines += ["", f"## What each `{knob}` costs", "", *_costs(values)]
    others = [*recommendation.ties, *recommendation.runners_up][:5]
    if others:
        lines += ["", "## Runners-up", "", *_runners_up(chosen, others)]
    if recommendation.rejected:
        lines += ["", "## Rejected", ""]
        for why, numbers in sorted(recommendation.rejected.items(), key=lambda one: one[1]):
            lines.append(f"- {why}: probe {', '.join(map(str, numbers))}")
    return "\n".join(lines) + "\n"


def _expectations(chosen: Ranked, work: Work) -> list[str]:
    measurement = chosen.measurement
    epochs = chosen.candidate.values.get("num_ppo_epochs")
    step = f"update ({epochs} optimizer steps)" if epochs else "optimizer step"
    noise = measurement.relative_uncertainty
    lines = [
        f"- {chosen.tokens_per_s:.0f} real tokens/s"
        + (f" (+-{100 * noise:.1f}%)" if noise is not None else ""),
        f"- {format_seconds(measurement.step_time_s or 0)} per {step}",
        f"- peak memory {format_bytes(chosen.peak_memory_bytes)}, on the worst batch of the data",
    ]
    seconds = work.seconds(measurement)
    if seconds is not None:
        much = f"{work.epochs:g} epoch(s)"
        if work.max_steps is not None:
            much = f"{work.max_steps} step(s)"
        full = ", if every completion has its full length" if measurement.generation_s else ""
        lines.append(f"- {format_seconds(seconds)} for {much}, without evaluation and saving{full}")
    return lines


def _verified(verification: dict[str, Any] | None) -> list[str]:
    if verification is None:
        return ["Not verified."]
    word = "Yes" if verification["verified"] else "No"
    return [f"{word}: {verification['reason']}."]


def _costs(values: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| value | best tokens/s | peak | probe |", "|---|---|---|---|"]
    for one in values:
        lines.append(
            f"| {value_label(one['value'])} | {one['tokens_per_s']:.0f} "
            f"| {format_bytes(one['peak_memory_bytes'])} | {one['probe']} |"
        )
    return lines


def _runners_up(chosen: Ranked, others: Sequence[Ranked]) -> list[str]:
    lines = ["| probe | tokens/s | peak | what differs |", "|---|---|---|---|"]
    for one in others:
        differs = ", ".join(
            f"{name}={value_label(value)}"
            for name, value in sorted(one.candidate.differences(chosen.candidate).items())
        )
        lines.append(
            f"| {one.number} | {one.tokens_per_s:.0f} | {format_bytes(one.peak_memory_bytes)} "
            f"| {differs} |"
        )
    return lines
