"""The bundle's `README.md`: why this configuration, and what to expect of it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.bundle.launch_script import data_kinds, flags
from autotune.search.job_time import Work
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.knobs import value_label
from autotune.space.vllm.server import Split
from autotune.units import format_bytes, format_seconds

NEEDS_VLLM = "It needs vLLM (`pip install trl[vllm]`), which was not run here unless it says so."


def readme(
    recommendation: Recommendation,
    *,
    model: str,
    device: str,
    work: Work,
    missing: Sequence[str],
    first: str | None,
    processes: int,
    split: Split | None,
    assumed: Sequence[str],
    verification: dict[str, Any] | None,
    costs: Mapping[str, Sequence[Mapping[str, Any]]],
    space_size: int,
    probes: int,
) -> str:
    """The bundle's page as Markdown text.

    Args:
        first: a script of the bundle that has to run beside the launch.
        processes: that train, one for each device.
        split: which of the job's GPUs train, and which are that script's.
    """
    chosen = recommendation.chosen
    lines = [
        f"# {model}: recommended configuration",
        "",
        f"Found by autotune on {device}: {probes} probes out of {space_size} candidates.",
        *_how_to_launch(chosen, missing, first, processes, split),
        *(f"Not measured: {one}." for one in assumed),
        *("", "## Why this one", ""),
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
        *_knobs(chosen),
    ]
    for knob, values in costs.items():
        lines += ["", f"## What each `{knob}` costs", "", *_costs(values)]
    lines += _others(recommendation)
    return "\n".join(lines) + "\n"


def _knobs(chosen: Ranked) -> list[str]:
    knobs = chosen.candidate.knobs
    rows = [f"| `{name}` | `{value_label(knobs[name])}` |" for name in sorted(knobs)]
    return ["| knob | value |", "|---|---|", *rows]


def _how_to_launch(
    chosen: Ranked,
    missing: Sequence[str],
    first: str | None,
    processes: int,
    split: Split | None,
) -> list[str]:
    several = f"It starts {processes} processes on this machine, one for each device. "
    if split is None:
        several += "To spread them over several machines, run `launch_nodes.sh` on each, or "
        several += "submit `launch.slurm`. "
    several += "`autotune check FOLDER` says whether the files still agree after you changed one."
    where = "on other GPUs (it says how)"
    if split is not None:
        trains, generates = (_listed(gpus) for gpus in (split.training, split.generating))
        where = f"in a shell of its own: it generates on {generates}, while {trains} train"
        where += "s" if len(split.training) == 1 else ""
    return [
        *([f"Start `{first}` first, {where}."] if first else []),
        *([NEEDS_VLLM] if chosen.candidate.values.get("use_vllm") else []),
        f"Launch it with `bash launch.sh{flags(missing)}`; arguments are passed on to TRL.",
        *data_kinds(missing),
        *([several] if processes > 1 else []),
    ]


def _listed(gpus: Sequence[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def _others(recommendation: Recommendation) -> list[str]:
    """What was measured besides, and what cannot be."""
    lines: list[str] = []
    others = [*recommendation.ties, *recommendation.runners_up][:5]
    if others:
        lines += ["", "## Runners-up", "", *_runners_up(recommendation.chosen, others)]
    if recommendation.rejected:
        lines += ["", "## Rejected", ""]
        for why, numbers in sorted(recommendation.rejected.items(), key=lambda one: one[1]):
            lines.append(f"- {why}: probe {', '.join(map(str, numbers))}")
    return lines


def _expectations(chosen: Ranked, work: Work) -> list[str]:
    measurement = chosen.measurement
    epochs = chosen.candidate.values.get("num_ppo_epochs")
    step = f"update ({epochs} optimizer steps)" if epochs else "optimizer step"
    noise, vllm = measurement.relative_uncertainty, measurement.vllm_bytes
    lines = [
        f"- {chosen.tokens_per_s:.0f} real tokens/s"
        + (f" (+-{100 * noise:.1f}%)" if noise is not None else ""),
        f"- {format_seconds(measurement.step_time_s or 0)} per {step}",
        f"- peak memory {format_bytes(chosen.peak_memory_bytes)}, on the worst batch of the data"
        + (f" ({format_bytes(vllm)} of it vLLM's, by its settings)" if vllm else ""),
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
