"""Plans for people and for programs. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import Choice, shortened
from autotune.plan.plan import Plan
from autotune.report.choice_table import (
    FIGURES,
    ROWS,
    WITH,
    ChoiceTable,
    choice_table,
    peak_cell,
    signs_lines,
    speed_cell,
)
from autotune.report.plan_answer import (
    advice_plain,
    answer_plain,
    choice_row,
    next_line,
    other_tuning_plain,
    plan_lines,
    shortfall_text,
    ways_out_lines,
)
from autotune.report.words import describe, install_text
from autotune.space.knobs import Candidate
from autotune.space.packages import NOT_ESTIMATED
from autotune.units import format_bytes, format_seconds

SCHEMA = 1
Pair = tuple[Candidate, Estimate]
Chosen = Sequence[Pair]


def plan_plain(
    plan: Plan,
    chosen: Chosen,
    other: tuple[str, Plan] | None = None,
    bundle: Path | None = None,
    *,
    fits: bool = False,
    top: int | None = None,
) -> dict[str, Any]:
    """Return what `autotune plan --json` prints; its table is of the choices that are shown.

    Args:
        other: the other tuning, with its plan.
    """
    device = plan.facts.device
    made = choice_table(plan, _shown(plan, fits, top)[0])
    return {
        "schema": SCHEMA,
        "device": {
            "kind": device.kind,
            "maker": None if device.kind == "cpu" else device.maker,
            "name": device.name,
            "count": plan.devices,
            "nodes": plan.nodes,
            "total_bytes": device.total_bytes,
            "limit_bytes": plan.limit_bytes,
            "host_limit_bytes": plan.host_limit_bytes,
            "capability": device.capability,
        },
        "model": {"name": plan.facts.model.name, "parameters": plan.facts.model.parameters},
        "answer": None if plan.answer is None else answer_plain(plan, plan.answer),
        "advice": None if plan.advice is None else advice_plain(plan.advice),
        "lines": list(_spoken(plan)),
        "table": asdict(made),
        "choices": [choice_row(plan, choice) for choice in plan.choices],
        "candidates": [
            {"knobs": candidate.knobs, "estimate": estimate.plain(), "fits": estimate.fits}
            for candidate, estimate in chosen
        ],
        "counts": _counts(plan),
        "packages": list(plan.packages),
        "not_estimated": [
            asdict(left_out)
            for left_out in plan.space.exclusions
            if left_out.reason in NOT_ESTIMATED
        ],
        "not_installed": plan.not_installed,
        "notes": list(plan.space.notes),
        "cached": plan.cached,
        "stopped": plan.stopped,
        "unfinished": plan.unfinished or 0,
        "seconds": plan.seconds,
        "other_tuning": None if other is None else other_tuning_plain(*other),
        "bundle": None if bundle is None else str(bundle),
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


def plan_view(
    plan: Plan,
    chosen: Chosen,
    *,
    command: str,
    every: bool = False,
    fits: bool = False,
    top: int | None = None,
) -> Iterator[RenderableType]:
    """Yield the answer, and the choices that it is of.

    Args:
        chosen: candidates to show, where `every` one is.
        command: what the user would run to measure and verify.
        fits: whether only choices that fit are shown.
        top: how many at most; None: `ROWS`.
    """
    if len(plan.space.candidates) == 1:
        yield _parts_table(chosen[0][1] if chosen else next(iter(plan.estimates.values())))
    else:
        yield "\n".join(_sentences(plan, command)) + "\n"
        if every:
            yield _candidates_table(plan, chosen)
            yield from (f"{line}\n" for line in signs_lines([pair[1] for pair in chosen]))
        else:
            yield from _choices(plan, fits, top)
    if plan.not_installed:
        yield f"{escape(plan.not_installed)}: it can be planned, but not run.\n"
    if len(plan.space.candidates) == 1:
        for note in plan.space.notes:
            yield f"note: {escape(note)}\n"
    if plan.packages and len(plan.space.candidates) == 1:
        yield f"{install_text(plan.packages)}\n"
    yield "\n".join([_count_line(plan), *_stopped_lines(plan), *_not_estimated_lines(plan)]) + "\n"
    if plan.by_formula:
        yield (
            f"of {plan.by_formula} candidates DeepSpeed or FSDP was not traced but estimated by "
            "formula (`adjusted trace`); of the fastest that may fit it was (of all: --trace-all)\n"
        )
    if len(plan.space.candidates) == 1:
        yield from map(escape, _why_not(plan))


def _sentences(plan: Plan, command: str) -> Iterator[str]:
    yield from map(escape, plan_lines(plan))
    if plan.answer is not None and plan.advice is None:
        yield escape(next_line(plan, command))


def _spoken(plan: Plan) -> Iterator[str]:
    """Yield what a plan says of its answer, without the command that goes on."""
    if len(plan.space.candidates) > 1:
        yield from plan_lines(plan)


def _shown(plan: Plan, fits: bool, top: int | None) -> tuple[Sequence[Choice], int]:
    """Return the choices that are shown, and how many more there are; none of a single candidate,
    and where nothing fits only on request: the ways out stand above."""
    if len(plan.space.candidates) == 1 or (plan.answer is None and top is None):
        return (), 0
    folded = [choice for choice in plan.choices if choice.estimate.fits or not fits]
    shown = shortened(folded, top or ROWS, plan.devices)
    return shown, len(folded) - len(shown)


def _choices(plan: Plan, fits: bool, top: int | None) -> Iterator[RenderableType]:
    """Yield the table of choices."""
    shown, more = _shown(plan, fits, top)
    made = choice_table(plan, shown)
    if made.shared:
        yield f"\n{escape(made.shared)}"
    if made.rows:
        yield choices_table(made)
    if more:
        yield f"... and {more} more choices (--all: every candidate)\n"
    yield from (f"{escape(line)}\n" for line in made.notes)


def _count_line(plan: Plan) -> str:
    counts = _counts(plan)
    owner = f"each of {plan.devices} " if plan.devices > 1 else ""
    where = f" in {plan.nodes} machines" if plan.nodes > 1 else ""
    return (
        f"{counts['fit']} of {counts['candidates']} candidates fit in "
        f"{format_bytes(plan.limit_bytes)} on {owner}{plan.facts.device.name}{where}; "
        f"planned in {format_seconds(plan.seconds)}"
    )


def _stopped_lines(plan: Plan) -> Iterator[str]:
    """Yield what the user did not wait for."""
    if not plan.stopped:
        return
    if plan.unfinished:
        yield (
            f"stopped: {plan.unfinished} more candidates have no estimate yet; one of them may be "
            "better"
        )
    else:
        yield "stopped: all are estimated, the first ones not yet as closely as they could be"


def _not_estimated_lines(plan: Plan) -> Iterator[str]:
    """Yield what could be trained and is not in the plan."""
    for left_out in plan.space.exclusions:
        if left_out.reason in NOT_ESTIMATED:
            count = "1 candidate is" if left_out.count == 1 else f"{left_out.count} candidates are"
            yield f"{count} not estimated: {escape(left_out.reason)}"


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
            peak_cell(estimate),
            format_bytes(estimate.sigma_bytes),
            format_bytes(estimate.peak_reserved_bytes),
            format_bytes(estimate.peak_allocated_bytes),
            "-" if speed is None else speed_cell(estimate, f"{speed:.0f}"),
            f"{estimate.p_oom:.2f}",
            *((format_bytes(estimate.host_bytes or 0), _share(estimate)) if hosted else ()),
            _fits(estimate),
            estimate.method,
        )
    return table


def _fits(estimate: Estimate) -> str:
    """Return whether a candidate does; where its training does, what does not."""
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
    if estimate.peak_while_loading_bytes is not None:
        table.add_row("peak while loading", format_bytes(estimate.peak_while_loading_bytes))
    if estimate.host_bytes is not None:
        table.add_row("host, all processes", format_bytes(estimate.host_bytes))
    if estimate.host_peak_while_loading_bytes is not None:
        loading = format_bytes(estimate.host_peak_while_loading_bytes)
        table.add_row("host, while loading", loading)
    if estimate.p_host_oom is not None:
        table.add_row("p(host oom)", f"{estimate.p_host_oom:.3f}")
    return table


def _why_not(plan: Plan) -> Iterator[str]:
    """Yield why a single candidate does not fit."""
    ((candidate, estimate),) = plan.ranked()
    if not estimate.fits:
        yield shortfall_text(plan, candidate, estimate) + "\n"
        yield "\n".join(ways_out_lines(plan)) + "\n"


def choices_table(made: ChoiceTable) -> Table:
    """Return a row for each choice."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in made.heads:
        justify: JustifyMethod = "right" if name in FIGURES else "left"
        table.add_column(name, justify=justify, no_wrap=name != WITH, overflow="fold")
    for row in made.rows:
        table.add_row(*map(escape, row))
    return table
