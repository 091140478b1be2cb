"""Plans for people and for programs. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import leanness, shortened
from autotune.plan.plan import Plan
from autotune.report.advice import advice_plain
from autotune.report.candidate_lines import describe
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
    answer_plain,
    choice_row,
    next_line,
    plan_lines,
    shortfall_text,
    ways_out_lines,
)
from autotune.report.words import install_text
from autotune.space.knobs import NUM_PROCESSES, Candidate
from autotune.space.packages import NOT_ESTIMATED
from autotune.units import format_bytes, format_seconds

SCHEMA = 1
Pair = tuple[Candidate, Estimate]
Chosen = Sequence[Pair]


def plan_plain(plan: Plan, chosen: Chosen) -> dict[str, Any]:
    """Return what `autotune plan --json` prints."""
    device = plan.facts.device
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
        "choices": [choice_row(plan, choice) for choice in plan.choices],
        "candidates": [
            {"knobs": candidate.knobs, "estimate": estimate.plain(), "fits": estimate.fits}
            for candidate, estimate in chosen
        ],
        "counts": _counts(plan),
        "divisions": [division.plain() for division in divisions(plan.ranked(), plan.devices)],
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
    divided = divisions(plan.ranked(), plan.devices)
    if divided:
        yield "\nHow the GPUs may be divided (of each its fastest that fits, or its leanest):"
        yield divisions_table(divided)
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


def _choices(plan: Plan, fits: bool, top: int | None) -> Iterator[RenderableType]:
    """Yield the table of choices; where nothing fits, only on request: the ways out stand above."""
    if plan.answer is None and top is None:
        return
    folded = [choice for choice in plan.choices if choice.estimate.fits or not fits]
    shown = shortened(folded, top or ROWS, plan.devices)
    made = choice_table(plan, shown)
    if made.shared:
        yield f"\n{escape(made.shared)}"
    yield choices_table(made)
    if len(shown) < len(folded):
        yield f"... and {len(folded) - len(shown)} more choices (--all: every candidate)\n"
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
    if estimate.host_bytes is not None:
        table.add_row("host, all processes", format_bytes(estimate.host_bytes))
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


@dataclass(frozen=True, kw_only=True)
class Division:
    """One way to divide the devices.

    Attributes:
        training: devices that train, one process on each.
        generating: those of the server.
        idle: the others.
        candidates: how many train so.
        fitting: how many of them fit, on both sides.
        shown: the fastest that fits, or the leanest.
        training_short_bytes: by how much the leanest is too large for each device that trains;
            None: some candidate fits there.
        server_short_bytes: the same of the server's.
    """

    training: int
    generating: int
    idle: int
    candidates: int
    fitting: int
    shown: Pair
    training_short_bytes: int | None
    server_short_bytes: int | None

    def plain(self) -> dict[str, Any]:
        """Return the division as JSON data."""
        candidate, estimate = self.shown
        assert estimate.server is not None
        return {
            "training": self.training,
            "generating": self.generating,
            "idle": self.idle,
            "candidates": self.candidates,
            "fit": self.fitting,
            "knobs": candidate.knobs,
            "peak_memory_bytes": estimate.peak_memory_bytes,
            "server": estimate.server.plain(),
            "training_short_bytes": self.training_short_bytes,
            "server_short_bytes": self.server_short_bytes,
        }


def divisions(pairs: Iterable[Pair], devices: int) -> list[Division]:
    """Return every division among candidates, those that train on most devices first.

    Args:
        pairs: every candidate with its estimate, the best first.
        devices: of the job.
    """
    groups: dict[tuple[int, int], list[Pair]] = {}
    for candidate, estimate in pairs:
        if estimate.server is not None:
            key = (int(candidate[NUM_PROCESSES]), estimate.server.devices)
            groups.setdefault(key, []).append((candidate, estimate))
    return [_division(*key, groups[key], devices) for key in sorted(groups, reverse=True)]


def _division(training: int, generating: int, members: list[Pair], devices: int) -> Division:
    fitting = [pair for pair in members if pair[1].fits]
    leanest = min(members, key=leanness)
    servers = [
        estimate.server.missing_bytes for _, estimate in members if estimate.server is not None
    ]
    return Division(
        training=training,
        generating=generating,
        idle=devices - training - generating,
        candidates=len(members),
        fitting=len(fitting),
        shown=fitting[0] if fitting else leanest,
        training_short_bytes=_least(estimate.missing_bytes for _, estimate in members),
        server_short_bytes=_least(servers),
    )


def _least(shortfalls: Iterable[int | None]) -> int | None:
    """Return the least of what is missing; None: to some nothing is."""
    values = list(shortfalls)
    return None if None in values else min(value for value in values if value is not None)


def divisions_table(divisions: Iterable[Division]) -> Table:
    """Return a line for each division: how many candidates fit, what each device takes, and why
    none fits."""
    table = Table(box=None, pad_edge=False)
    for name in ("train", "generate", "idle", "fit", "each that trains", "each that generates"):
        table.add_column(name, justify="right")
    table.add_column("why not")
    for division in divisions:
        _, estimate = division.shown
        assert estimate.server is not None
        needs = estimate.server
        table.add_row(
            str(division.training),
            str(division.generating),
            str(division.idle),
            f"{division.fitting} of {division.candidates}",
            format_bytes(estimate.peak_memory_bytes),
            f"{format_bytes(needs.needed_bytes)} of {format_bytes(needs.given_bytes)}",
            escape("; ".join(why_not(division))),
        )
    return table


def why_not(division: Division) -> Iterator[str]:
    """Yield which side does not fit, and by how much; nothing where something fits."""
    if division.training_short_bytes is not None:
        shortfall = format_bytes(division.training_short_bytes)
        yield f"training: the leanest is {shortfall} short on each GPU"
    if division.server_short_bytes is not None:
        _, estimate = division.shown
        assert estimate.server is not None
        weights = format_bytes(estimate.server.weights_bytes)
        cache = format_bytes(estimate.server.cache_bytes or 0)
        shortfall = format_bytes(division.server_short_bytes)
        yield f"server: {shortfall} short on each GPU (weights {weights}, caches {cache})"
    if (
        not division.fitting
        and division.training_short_bytes is None
        and division.server_short_bytes is None
    ):
        yield "what fits the training does not fit the server, and the other way round"
