"""The table of a plan's choices: what all of them share is said once, above it. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import Choice
from autotune.plan.plan import Plan
from autotune.report.words import batch_text, checkpointing_cell, checkpointing_phrase, other_words
from autotune.space.checkpointing import CHECKPOINTING, LEANEST_FIRST
from autotune.space.sharding.sharding import engine_name, sharding_of
from autotune.units import format_bytes, format_speed

ROWS = 12
"""Choices that a table has at most."""
COLUMNS = 80
"""Characters that a row has at most."""
GAP = 2
SHARDING, WITH = "sharding", "with"
PLAIN_COPY, OFFLOADED = "a plain copy", "optimizer and weights on cpu"
FIGURES = ("tokens/s", "peak", "p(oom)")
"""Columns of figures."""
_CERTAIN = {"0.00", "1.00"}
_OF_ALL = {
    **{("ckpt", checkpointing_cell(value)): checkpointing_phrase(value) for value in LEANEST_FIRST},
    **{("fits", "yes"): "fits", ("fits", "maybe"): "may fit", ("fits", "no"): "does not fit"},
}
"""A column and what all rows have in it, in words."""


@dataclass(frozen=True, kw_only=True)
class ChoiceTable:
    """Rows of choices. Of several rows no column is the same in all.

    Attributes:
        shared: what all rows have, as a line; empty: nothing.
        notes: what signs in the rows mean.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shared: str
    notes: tuple[str, ...]


def choice_table(plan: Plan, shown: Sequence[Choice]) -> ChoiceTable:
    """Return the table of some choices.

    What all rows have, a cell or one of its words, is said above them and not in them. The
    probability of running out of memory is a column only where it is neither 0 nor 1 in some row.
    In a row the rarest word is the first; of words that make it longer than `COLUMNS` the last ones
    are left out, and counted.
    """
    processes = {_processes(plan, choice) for choice in shown}
    cells = [_cells(plan, choice, counted=len(processes) > 1) for choice in shown]
    words = [_words(plan, choice) for choice in shown]
    common = [word for word in words[0] if all(word in row for row in words)] if words else []
    names = list(cells[0]) if cells else []
    kept = [name for name in names if _tells_apart(name, [row[name] for row in cells])]
    said = [f"{max(processes)} devices"] if plan.devices > 1 and len(processes) == 1 else []
    said += [text for name in names if name not in kept and (text := _said(name, cells[0][name]))]
    said += common
    taken = sum(GAP + max(len(text) for text in (name, *_column(name, cells))) for name in kept)
    often = Counter(word for row in words for word in row)
    own = [sorted((w for w in row if w not in common), key=often.__getitem__) for row in words]
    texts = [_fitted(row, COLUMNS - taken) for row in own]
    if any(texts):
        kept.append(WITH)
    rows = [{**row, WITH: text} for row, text in zip(cells, texts, strict=True)]
    cut = any(text != ", ".join(row) for text, row in zip(texts, own, strict=True))
    return ChoiceTable(
        heads=tuple(kept),
        rows=tuple(tuple(row[name] for name in kept) for row in rows),
        shared=f"All: {', '.join(said)}." if said else "",
        notes=(
            *(["+1, +2, ...: so many more settings"] if cut else []),
            *signs_lines([choice.estimate for choice in shown]),
        ),
    )


def _cells(plan: Plan, choice: Choice, *, counted: bool) -> dict[str, str]:
    """Return a row by the names of its columns, without its words.

    Args:
        counted: whether its processes stand beside its sharding.
    """
    candidate, estimate = choice.candidate, choice.estimate
    speed = estimate.tokens_per_s
    sharding = _engine(plan, choice)[0]
    return {
        "batch": batch_text(candidate),
        SHARDING: f"{_processes(plan, choice)} {sharding}" if counted else sharding,
        "ckpt": checkpointing_cell(candidate.values.get(CHECKPOINTING)),
        "tokens/s": "-" if speed is None else speed_cell(estimate, format_speed(speed)),
        "peak": peak_cell(estimate),
        "p(oom)": f"{estimate.p_oom:.2f}",
        "fits": "yes" if choice.safe else "maybe" if estimate.fits else "no",
    }


def _words(plan: Plan, choice: Choice) -> list[str]:
    """Return what a choice has besides; first where its sharding keeps things."""
    return [*_engine(plan, choice)[1:], *other_words(choice.candidate, plan.space)]


def _engine(plan: Plan, choice: Choice) -> list[str]:
    """Return the name of a sharding, and what it keeps elsewhere: `ZeRO-2`, `optimizer on cpu`."""
    name, *places = engine_name(sharding_of(choice.candidate.values, plan.devices)).split(", ")
    return (
        [name, OFFLOADED] if places == ["optimizer on cpu", "weights on cpu"] else [name, *places]
    )


def _processes(plan: Plan, choice: Choice) -> int:
    return sharding_of(choice.candidate.values, plan.devices).num_processes


def _column(name: str, cells: Sequence[dict[str, str]]) -> list[str]:
    return [row[name] for row in cells]


def _tells_apart(name: str, column: Sequence[str]) -> bool:
    """True if a column stays: its cells differ; of a single row its figures."""
    if name == "p(oom)" and set(column) <= _CERTAIN:
        return False
    return len(set(column)) > 1 or (len(column) == 1 and name in ("batch", *FIGURES))


def _said(name: str, cell: str) -> str:
    """Return what all rows have in a column, in words; empty: that goes without saying."""
    match name:
        case "ckpt" | "fits":
            return _OF_ALL.get((name, cell), "")
        case "tokens/s":
            return "" if cell == "-" else f"{cell} tokens/s"
        case "p(oom)":
            return "" if cell in _CERTAIN else f"p(oom) {cell}"
        case _ if name == SHARDING:
            return "" if cell == PLAIN_COPY else cell
    return f"{name} {cell}"


def _fitted(words: Sequence[str], width: int) -> str:
    """Return as many words as that many characters hold, and how many more there are."""
    for count in range(len(words), 0, -1):
        more = [f"+{len(words) - count}"] if count < len(words) else []
        text = ", ".join([*words[:count], *more])
        if len(text) <= width:
            return text
    return f"+{len(words)}" if words else ""


def speed_cell(estimate: Estimate, speed: str) -> str:
    """Return a speed in a table; `<`: at most, for a cost in time that is not known."""
    return f"{'<' if estimate.left_out else ''}{speed.removesuffix(' tokens/s')}"


def peak_cell(estimate: Estimate) -> str:
    """Return a peak in a table; `>`: at least, for what was not traced."""
    return f"{'>' if estimate.at_least else ''}{format_bytes(estimate.peak_memory_bytes)}"


def signs_lines(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield what `<` and `>` mean below a table, where something has them."""
    costs = {cost for estimate in estimates for cost in estimate.left_out}
    if costs:
        yield f"<: at most; the time of {' and '.join(sorted(costs))} is not known, and not counted"
    if any(estimate.at_least for estimate in estimates):
        yield ">: at least; that alone does not fit"
