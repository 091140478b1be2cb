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
    winner = recommendation.chosen
    lines = [
        f"# {model}: recommended configuration",
        "",
        f"Found by autotune on {device}: {probes} probes out of {space_size} candidates.",
        *_how_to_launch(winner, missing, first, processes, split),
        *(f"Not measured: {assumption}." for assumption in assumed),
        *("", "## Why this one", ""),
        *[f"- {reason}" for reason in recommendation.reasons],
        "",
        "## What to expect",
        "",
        *_expectations(winner, work),
        "",
        "## Verified",
        "",
        *_verified(verification),
        "",
        "## The knobs",
        "",
        *_knobs(winner),
    ]
    for knob, values in costs.items():
        lines += ["", f"## What each `{knob}` costs", "", *_costs(values)]
    lines += _alternatives(recommendation)
    return "\n".join(lines) + "\n"


def _knobs(winner: Ranked) -> list[str]:
    knobs = winner.candidate.knobs
    rows = [f"| `{name}` | `{value_label(knobs[name])}` |" for name in sorted(knobs)]
    return ["| knob | value |", "|---|---|", *rows]


def _how_to_launch(
    winner: Ranked,
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
        trains, generates = (_gpu_list(gpus) for gpus in (split.training, split.generating))
        where = f"in a shell of its own: it generates on {generates}, while {trains} train"
        where += "s" if len(split.training) == 1 else ""
    return [
        *([f"Start `{first}` first, {where}."] if first else []),
        *([NEEDS_VLLM] if winner.candidate.values.get("use_vllm") else []),
        f"Launch it with `bash launch.sh{flags(missing)}`; arguments are passed on to TRL.",
        *data_kinds(missing),
        *([several] if processes > 1 else []),
    ]


def _gpu_list(gpus: Sequence[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def _alternatives(recommendation: Recommendation) -> list[str]:
    """What was measured besides, and what cannot be."""
    lines: list[str] = []
    alternatives = [*recommendation.ties, *recommendation.runners_up][:5]
    if alternatives:
        lines += ["", "## Runners-up", "", *_runners_up(recommendation.chosen, alternatives)]
    if recommendation.rejected:
        lines += ["", "## Rejected", ""]
        for reason, numbers in sorted(recommendation.rejected.items(), key=lambda item: item[1]):
            lines.append(f"- {reason}: probe {', '.join(map(str, numbers))}")
    return lines


def _expectations(winner: Ranked, work: Work) -> list[str]:
    measurement = winner.measurement
    epochs = winner.candidate.values.get("num_ppo_epochs")
    step = f"update ({epochs} optimizer steps)" if epochs else "optimizer step"
    noise, vllm = measurement.relative_uncertainty, measurement.vllm_bytes
    lines = [
        f"- {winner.tokens_per_s:.0f} real tokens/s"
        + (f" (+-{100 * noise:.1f}%)" if noise is not None else ""),
        f"- {format_seconds(measurement.step_time_s or 0)} per {step}",
        f"- peak memory {format_bytes(winner.peak_memory_bytes)}, on the worst batch of the data"
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
    for value in values:
        lines.append(
            f"| {value_label(value['value'])} | {value['tokens_per_s']:.0f} "
            f"| {format_bytes(value['peak_memory_bytes'])} | {value['probe']} |"
        )
    return lines


def _runners_up(winner: Ranked, alternatives: Sequence[Ranked]) -> list[str]:
    lines = ["| probe | tokens/s | peak | what differs |", "|---|---|---|---|"]
    for candidate in alternatives:
        differs = ", ".join(
            f"{name}={value_label(value)}"
            for name, value in sorted(candidate.candidate.differences(winner.candidate).items())
        )
        peak = format_bytes(candidate.peak_memory_bytes)
        lines.append(f"| {candidate.number} | {candidate.tokens_per_s:.0f} | {peak} | {differs} |")
    return lines
