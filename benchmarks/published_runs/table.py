"""What was measured beside what is planned, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.published_runs.settings import Row, name_of

GB = 1e9
Found = Mapping[str, Any]
COLUMNS = ("run", "figure", "measured GB", "planned GB", "off", "fits", "planned", "method")
SPEEDS = ("run", "measured tokens/s", "planned", "planned / measured", "rank", "planned rank")


def table(rows: Sequence[Row], found: Mapping[str, Found]) -> str:
    """The tables of memory and of speed."""
    good = {name: row for name, row in found.items() if "failure" not in row}
    known = [row for row in rows if name_of(row) in good]
    memory = [_memory(row, good[name_of(row)]) for row in known if _comparable(row, good)]
    about = sorted({(r["about"]["date"][:10], r["about"]["commit"]) for r in found.values()})
    lines = [
        "`python benchmarks/published_runs/run.py`; planned by "
        + ", ".join(f"{commit} ({date})" for date, commit in about),
        "",
        f"{len(good)} of {len({name_of(row) for row in rows})} published runs are planned.",
        "",
        "## Memory",
        "",
        *_lines(COLUMNS, [one[:-1] for one in memory]),
        "",
        *_summary(memory),
        "",
        "## Speed",
        "",
        *_speed([row for row in known if row["measured_tokens_per_s"]], good),
        *(
            f"\nNot planned: {name}: {row['failure'][-300:]}"
            for name, row in found.items()
            if "failure" in row
        ),
    ]
    return "\n".join(lines) + "\n"


def _comparable(row: Row, plans: Mapping[str, Found]) -> bool:
    """Whether a plan has the row's figure: between steps there are states, which the parts of a
    peak before the first one's end do not have."""
    states = "optimizer" in plans[name_of(row)]["estimate"]["parts"]
    return states or row["measured_kind"] != "steady_allocated"


def _memory(row: Row, plan: Found) -> tuple[Any, ...]:
    """The cells of a row; last (the figure's kind, its error), or None without one."""
    estimate, kind = plan["estimate"], row["measured_kind"]
    ours = planned_bytes(row, estimate)
    theirs = int(row["measured_bytes"]) if row["measured_bytes"] else None
    off = None if theirs is None else ours / theirs - 1
    return (
        name_of(row),
        kind,
        row["measured_raw"] if theirs is None else f"{theirs / GB:.3f}",
        f"{ours / GB:.3f}",
        "" if off is None else f"{off:+.2%}",
        row["measured_verdict"],
        "fits" if plan["fits"] else "oom",
        estimate["method"],
        None if off is None else (kind, off),
    )


def planned_bytes(row: Row, estimate: Found) -> int:
    """Our counterpart of a figure. What others' versions take more or less is in the row."""
    parts, kind = estimate["parts"], row["measured_kind"]
    adjusted = int(row["stack_adjust_bytes"] or 0)
    if kind == "steady_allocated":
        return int(parts["weights"] + parts["optimizer"]) + adjusted
    if kind == "max_allocated":
        return int(estimate["peak_allocated_bytes"]) + adjusted
    return int(estimate["peak_memory_bytes"])


def _summary(memory: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    kinds = dict.fromkeys(one[1] for one in memory)
    rows = []
    for kind in kinds:
        errors = [one[-1][1] for one in memory if one[-1] is not None and one[1] == kind]
        if errors:
            size = f"{median(map(abs, errors)):.2%}"
            rows.append((kind, len(errors), size, f"{min(errors):+.1%}", f"{max(errors):+.1%}"))
    yield from _lines(("figure", "rows", "median size of the error", "least", "most"), rows)
    verdicts = [one for one in memory if one[1] != "steady_allocated"]
    wrong = [one[0] for one in verdicts if one[5] != one[6]]
    yield ""
    yield f"Verdicts: {len(verdicts) - len(wrong)} of {len(verdicts)} right" + (
        f"; wrong: {', '.join(wrong)}." if wrong else "."
    )


def _speed(rows: Sequence[Row], found: Mapping[str, Found]) -> Iterator[str]:
    pairs = [
        (
            name_of(row),
            float(row["measured_tokens_per_s"]),
            found[name_of(row)]["estimate"]["tokens_per_s"],
        )
        for row in rows
        if found[name_of(row)]["estimate"]["tokens_per_s"]
    ]
    measured, planned = _ranks([one[1] for one in pairs]), _ranks([one[2] for one in pairs])
    cells = [
        (name, f"{theirs:.0f}", f"{ours:.0f}", f"{ours / theirs:.2f}", f"{a:.0f}", f"{b:.0f}")
        for (name, theirs, ours), a, b in zip(pairs, measured, planned, strict=True)
    ]
    yield from _lines(SPEEDS, cells)
    if len(pairs) < 3:
        return
    yield ""
    for group in dict.fromkeys(name.split("_")[0] for name, _, _ in pairs):
        ratios = [ours / theirs for name, theirs, ours in pairs if name.startswith(group)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        yield f"- {group}: {len(ratios)} rows, median ratio {spread}"
    gaps = sum((a - b) ** 2 for a, b in zip(measured, planned, strict=True))
    count = len(pairs)
    yield f"- ranks of all {count}: Spearman {1 - 6 * gaps / (count * (count**2 - 1)):.3f}"


def _ranks(values: Sequence[float]) -> list[float]:
    """1 is the fastest; equal ones share the mean of their places."""
    order = sorted(values, reverse=True)
    return [order.index(one) + (order.count(one) + 1) / 2 for one in values]


def _lines(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
