"""Plans for people and for programs. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from autotune.cli.views.splits import divisions, divisions_table
from autotune.cli.views.tables import describe
from autotune.estimate.estimate import Estimate
from autotune.estimate.records.events import (
    ACTIVATIONS,
    CASTS,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    VLLM,
    WEIGHTS,
)
from autotune.plan.plan import Plan
from autotune.space.knobs import COMPLETION, RESPONSE, Candidate
from autotune.space.vllm.colocated import SLEEP, USE
from autotune.units import format_bytes, format_seconds

SCHEMA = 1
SHOWN = 25
LITTLE = 2**20
Chosen = Sequence[tuple[Candidate, Estimate]]


def plan_plain(plan: Plan, chosen: Chosen) -> dict[str, Any]:
    """What `autotune plan --json` prints."""
    device = plan.facts.device
    return {
        "schema": SCHEMA,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "count": plan.devices,
            "nodes": plan.nodes,
            "total_bytes": device.total_bytes,
            "limit_bytes": plan.limit_bytes,
            "host_limit_bytes": plan.host_limit_bytes,
            "capability": device.capability,
        },
        "model": {"name": plan.facts.model.name, "parameters": plan.facts.model.parameters},
        "candidates": [
            {"knobs": candidate.knobs, "estimate": estimate.plain(), "fits": estimate.fits}
            for candidate, estimate in chosen
        ],
        "counts": _counts(plan),
        "divisions": [division.plain() for division in divisions(plan.ranked(), plan.devices)],
        "not_installed": plan.not_installed,
        "notes": list(plan.space.notes),
        "cached": plan.cached,
        "seconds": plan.seconds,
    }


def _counts(plan: Plan) -> dict[str, int]:
    estimates = plan.estimates.values()
    return {
        "candidates": len(plan.estimates),
        "fit": sum(estimate.fits for estimate in estimates),
        **{
            f"by {method}": count
            for method, count in sorted(Counter(estimate.method for estimate in estimates).items())
        },
    }


def plan_view(plan: Plan, chosen: Chosen) -> Iterator[RenderableType]:
    """A table of candidates, and why the first that does not fit does not."""
    if len(plan.space.candidates) == 1:
        yield _parts_table(chosen[0][1] if chosen else next(iter(plan.estimates.values())))
    else:
        yield _candidates_table(plan, chosen[:SHOWN])
        if len(chosen) > SHOWN:
            yield f"... and {len(chosen) - SHOWN} more (--top, --json)\n"
    divided = divisions(plan.ranked(), plan.devices)
    if divided:
        yield "\nHow the GPUs may be divided (of each its fastest that fits, or its leanest):"
        yield divisions_table(divided)
    if plan.not_installed:
        yield f"{escape(plan.not_installed)}: it can be planned, but not run.\n"
    for note in plan.space.notes:
        yield f"note: {escape(note)}\n"
    counts = _counts(plan)
    owner = f"each of {plan.devices} " if plan.devices > 1 else ""
    where = f" in {plan.nodes} machines" if plan.nodes > 1 else ""
    yield (
        f"{counts['fit']} of {counts['candidates']} candidates fit in "
        f"{format_bytes(plan.limit_bytes)} on {owner}{plan.facts.device.name}{where}; "
        f"planned in {format_seconds(plan.seconds)}\n"
    )
    if plan.by_formula:
        yield (
            f"of {plan.by_formula} candidates DeepSpeed or FSDP was not traced but estimated by "
            "formula (`adjusted trace`); of the fastest that may fit it was (of all: --trace-all)\n"
        )
    nearest = min(
        (pair for pair in plan.ranked() if pair[1].missing_bytes is not None),
        key=lambda pair: pair[1].peak_memory_bytes,
        default=None,
    )
    if nearest is not None:
        yield escape(_why_not(*nearest, plan.facts.stack.fused_head))


def _candidates_table(plan: Plan, chosen: Chosen) -> Table:
    free = [knob.name for knob in plan.space.free_knobs]
    table = Table(box=None, pad_edge=False)
    hosted = any(estimate.p_host_oom is not None for estimate in plan.estimates.values())
    names = ["candidate", "peak", "+-", "reserved", "allocated", "tokens/s", "p(oom)"]
    for name in (*names, *(("host", "p(host)") if hosted else ()), "fits"):
        table.add_column(name, justify="left" if name == "candidate" else "right")
    table.add_column("method")
    for candidate, estimate in chosen:
        speed = estimate.tokens_per_s
        table.add_row(
            describe(candidate, free),
            format_bytes(estimate.peak_memory_bytes),
            format_bytes(estimate.sigma_bytes),
            format_bytes(estimate.peak_reserved_bytes),
            format_bytes(estimate.peak_allocated_bytes),
            "-" if speed is None else f"{speed:.0f}",
            f"{estimate.p_oom:.2f}",
            *((format_bytes(estimate.host_bytes or 0), _share(estimate)) if hosted else ()),
            _fits(estimate),
            estimate.method,
        )
    return table


def _fits(estimate: Estimate) -> str:
    """Whether a candidate does; where its training does, what does not."""
    if estimate.fits:
        return "yes"
    if estimate.missing_bytes is not None:
        return "no"
    return "no: host" if estimate.host_missing_bytes is not None else "no: server"


def _share(estimate: Estimate) -> str:
    return "-" if estimate.p_host_oom is None else f"{estimate.p_host_oom:.2f}"


def _parts_table(estimate: Estimate) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("part")
    table.add_column("bytes", justify="right")
    for name, size in sorted(estimate.parts.items(), key=lambda part: -part[1]):
        table.add_row(name, format_bytes(size))
    table.add_row("whole process", format_bytes(estimate.peak_memory_bytes))
    table.add_row("standard deviation", format_bytes(estimate.sigma_bytes))
    table.add_row("peak operator", f"{estimate.peak_operator} ({estimate.peak_phase})")
    table.add_row("method", escape("; ".join((estimate.method, *estimate.notes))))
    if estimate.tokens_per_s is not None and estimate.step_time_s is not None:
        table.add_row("step time", format_seconds(estimate.step_time_s))
        table.add_row("tokens/s", f"{estimate.tokens_per_s:.0f}")
    table.add_row("p(oom)", f"{estimate.p_oom:.3f}")
    if estimate.host_bytes is not None:
        table.add_row("host, all processes", format_bytes(estimate.host_bytes))
    if estimate.p_host_oom is not None:
        table.add_row("p(host oom)", f"{estimate.p_host_oom:.3f}")
    return table


def _why_not(candidate: Candidate, estimate: Estimate, fused_head: bool) -> str:
    if estimate.missing_bytes is None and estimate.host_missing_bytes is not None:
        shortfall = format_bytes(estimate.host_missing_bytes)
        return f"The leanest that does not fit is {shortfall} of the host's memory short.\n"
    largest = max(estimate.parts, key=lambda name: estimate.parts[name])
    missing = estimate.missing_bytes or 0
    shortfall = f"{format_bytes(missing)} short" if missing >= LITTLE else "hardly too large"
    text = (
        f"The leanest that does not fit is {shortfall}: "
        f"{format_bytes(estimate.parts[largest])} are {largest}, its peak is in "
        f"{estimate.peak_operator or 'no one place'}."
    )
    change = most_helpful(estimate.parts, candidate.values, fused_head=fused_head)
    return f"{text} What helps most: {change}.\n" if change else text + "\n"


def most_helpful(
    parts: Mapping[str, int], candidate: Mapping[str, Any], *, fused_head: bool = False
) -> str | None:
    """Which change of the candidate would take most from the largest part that one is known for."""
    chunked = fused_head or candidate.get("loss_type") != "nll"
    lora = candidate.get("lora_r") is not None
    smaller = [] if candidate.get("per_device_train_batch_size") == 1 else ["a smaller micro-batch"]
    shorter = [*smaller, "a shorter max_length"]
    if RESPONSE in candidate:  # PPO keeps the logits of all responses of an update
        shorter = ["a smaller global_batch_size", f"a shorter {RESPONSE}"]
    elif COMPLETION in candidate:
        shorter = [*smaller, f"a shorter {COMPLETION}"]
    changes = {
        ACTIVATIONS: [
            *([] if candidate.get("gradient_checkpointing") else ["gradient_checkpointing"]),
            *shorter,
        ],
        LOGITS: [
            *([] if chunked else ["loss_type=chunked_nll"]),
            *shorter,
        ],
        OPTIMIZER: [] if lora else ["tuning: lora", "a leaner optimizer"],
        GRADIENTS: [] if lora else ["tuning: lora"],
        CASTS: ["dtype: bfloat16 (a recipe knob)"],
        WEIGHTS: [
            *([] if candidate.get("dtype") == "bfloat16" else ["dtype: bfloat16 (a recipe knob)"]),
            *([] if "load_in_8bit" in candidate or candidate.get(USE) else ["tuning: qlora"]),
        ],
        VLLM: [
            *([] if candidate.get(SLEEP) else [f"{SLEEP}: true"]),
            "a smaller vllm_gpu_memory_utilization (unpinned it is what the completions need)",
            f"transformers' generation (no {USE})",
        ],
    }
    for part in sorted(parts, key=lambda name: -parts[name]):
        if changes.get(part):
            return ", or ".join(changes[part][:2])
    return None
