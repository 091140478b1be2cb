"""The bundle's `README.md`: why this configuration was chosen, and what to expect. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from autotune.bundle.launch_script import data_kinds, flags, missing_fields
from autotune.bundle.vllm_script import FILE as SERVE_SCRIPT
from autotune.bundle.vllm_script import wants_server
from autotune.errors import in_one_line
from autotune.search.job_time import Work, work_of
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.knobs import Candidate, value_label
from autotune.space.notes import code_note
from autotune.space.trl_config import Settings
from autotune.units import format_bytes, format_seconds

_SHARED = (
    "Several machines need `output_dir` on a disk that all see: each writes a part of checkpoints.",
    "Where they do not meet, `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` name the network "
    "(`NCCL_DEBUG=INFO` prints which one was taken).",
)
_COMPILED = "DeepSpeed compiles when it first starts: `TORCH_EXTENSIONS_DIR` on each machine's own "
_COMPILED += "disk keeps them from waiting for one lock in a home that they share."
NEEDS_VLLM = "It needs vLLM (`pip install trl[vllm]`), which was not run here unless it says so."


def readme(
    recommendation: Recommendation,
    chosen: Settings,
    origin: str,
    verification: dict[str, Any] | None,
) -> str:
    """Return the bundle's page as Markdown text.

    Args:
        origin: how it was found, as a sentence.
    """
    winner, work = recommendation.chosen, work_of(chosen.config)
    lines = [
        heading(chosen.facts.model.name, "recommended configuration"),
        "",
        origin,
        *how_to_launch(chosen),
        *(f"Not measured: {assumption}." for assumption in chosen.job.assumed),
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
        *knobs_table(winner.candidate),
    ]
    return page(lines)


def heading(model: str, title: str) -> str:
    """Return the first line of a page."""
    return f"# {plain_name(model)}: {title}"


def plain_name(name: str) -> str:
    """Return the name of a model or a device, escaped for Markdown and HTML."""
    return re.sub(r"[`<>\[\]]", lambda found: f"\\{found[0]}", name)


def page(lines: Sequence[str]) -> str:
    """Return lines as a text; a line break inside of one does not begin another."""
    return "\n".join(map(in_one_line, lines)) + "\n"


def knobs_table(candidate: Candidate) -> list[str]:
    """Return the knobs of a candidate as the lines of a table."""
    knobs = candidate.knobs
    rows = [f"| `{name}` | `{value_label(knobs[name])}` |" for name in sorted(knobs)]
    return ["| knob | value |", "|---|---|", *rows]


def how_to_launch(chosen: Settings) -> list[str]:
    """Return how the bundle of a candidate is launched, in sentences."""
    missing, split = missing_fields(chosen), chosen.split
    processes, machines = chosen.processes, chosen.job.devices.nodes
    check = "`autotune check FOLDER` says whether the files still agree after you changed one."
    several = f"It starts {processes} processes on this machine, one for each device. "
    if split is None:
        several += "To spread them over several machines, run `launch_nodes.sh` on each, or "
        several += "submit `launch.slurm`. "
    where = "on other GPUs (it says how)"
    if split is not None:
        trains, generates = (_gpu_list(gpus) for gpus in (split.training, split.generating))
        where = f"in a shell of its own: it generates on {generates}, while {trains} train"
        where += "s" if len(split.training) == 1 else ""
    launch = [
        f"Launch it with `bash launch.sh{flags(missing)}`; arguments are passed on to TRL.",
        *data_kinds(missing),
        *([several + check] if processes > 1 else []),
    ]
    if machines > 1:
        launch = [
            f"It trains with {processes} processes on {machines} machines, one for each device: "
            f"run `bash launch_nodes.sh{flags(missing)}` on each (it says how), or start it by "
            f"Slurm (`launch.slurm`), SkyPilot (`sky.yaml`) or Kubeflow Trainer (`trainjob.yaml`). "
            f"{check}",
            *data_kinds(missing),
        ]
    return [
        *([f"Start `{SERVE_SCRIPT}` first, {where}."] if wants_server(chosen.config) else []),
        *([NEEDS_VLLM] if chosen.candidate.values.get("use_vllm") else []),
        *launch,
        *(_SHARED if processes > 1 and split is None else []),
        *([_COMPILED] if processes > 1 and split is None and chosen.deepspeed else []),
        *([f"Mind that {code}."] if (code := code_note(chosen.job)) else []),
    ]


def _gpu_list(gpus: Sequence[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def step_name(candidate: Candidate) -> str:
    """Return what one timed step covers."""
    epochs = candidate.values.get("num_ppo_epochs")
    return f"update ({epochs} optimizer steps)" if epochs else "optimizer step"


def _expectations(winner: Ranked, work: Work) -> list[str]:
    measurement = winner.measurement
    noise, vllm = measurement.relative_uncertainty, measurement.vllm_bytes
    lines = [
        f"- {winner.tokens_per_s:.0f} real tokens/s"
        + (f" (+-{100 * noise:.1f}%)" if noise is not None else ""),
        f"- {format_seconds(measurement.step_time_s or 0)} per {step_name(winner.candidate)}",
        f"- peak memory {format_bytes(winner.peak_memory_bytes)}, on the worst batch of the data"
        + (f" ({format_bytes(vllm)} of it vLLM's, by its settings)" if vllm else ""),
    ]
    seconds = work.seconds(measurement)
    if seconds is not None:
        length = f"{work.epochs:g} epoch(s)"
        if work.max_steps is not None:
            length = f"{work.max_steps} step(s)"
        full = ", if every completion has its full length" if measurement.generation_s else ""
        lines.append(
            f"- {format_seconds(seconds)} for {length}, without evaluation and saving{full}"
        )
    return lines


def _verified(verification: dict[str, Any] | None) -> list[str]:
    if verification is None:
        return ["Not verified."]
    word = "Yes" if verification["verified"] else "No"
    return [f"{word}: {verification['reason']}."]
