"""`results.md`: each setting against the same searches with one probe at a time."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.command import Rows
from benchmarks.scale.cluster import NODE_GPUS
from benchmarks.scale.simulation import SIZES, WITHIN

HOUR = 3600
Run = dict[str, Any]
COLUMNS = (
    "at once | searches | minutes | of them the fastest again | first within 2% | probes | "
    "GPU-hours held | used | minutes against one | held | used | within 2% | lost"
)


def table(rows: Rows) -> str:
    """Return all tables."""
    by_table = defaultdict(list)
    for row in rows:
        if "runs" in row:
            by_table[row["table"]].append(row)
    parts = [f"# Searches with several probes at once, simulated\n\n{_about(rows)}"]
    texts = {
        "lanes": "## One to 32 at once, on 1,024 GPUs",
        "others": "## Other jobs, probes and noise",
        "failures": "## Nodes that die",
        "room": "## Clusters with little room",
    }
    for name, title in texts.items():
        groups = _groups(by_table[name])
        if groups:
            parts += [title, *(_part(name, some) for some in groups)]
    return "\n\n".join(parts) + "\n"


def _groups(rows: Rows) -> list[list[dict[str, Any]]]:
    """Return rows that differ by how many are at once alone."""
    found = defaultdict(list)
    for row in rows:
        found[row["gpus"], row["row"]].append(row)
    return [sorted(some, key=lambda row: row["at_once"]) for some in found.values()]


def _part(name: str, group: Rows) -> str:
    first, size = group[0], SIZES[group[0]["gpus"]]
    title = f"### {size.gpus} GPU{'s' * (size.gpus > 1)} a candidate ({size.model})"
    title += "" if first["row"] == "usual" else f", {first['row']}"
    head = f"| {COLUMNS} |\n" + "|---" * (COLUMNS.count("|") + 1) + "|"
    lines = [_line(row, first) for row in group]
    after = [f"\n{_waste(group)}"] if name in ("lanes", "others") else [f"\n{_deaths(group)}"]
    return f"{title}\n\n" + "\n".join([head, *lines, *after])


def _line(row: dict[str, Any], one: dict[str, Any]) -> str:
    runs = row["runs"]
    again = [run["wall_s"] - run["searched_s"] for run in runs if run["searched_s"] is not None]
    firsts = [run["first_s"] for run in runs if run["first_s"] is not None]
    figures = [
        str(row["at_once"]),
        str(len(runs)),
        f"{_mean(runs, 'wall_s') / 60:.1f}",
        f"{statistics.fmean(again) / 60:.1f}",
        f"{statistics.fmean(firsts) / 60:.1f}",
        f"{_mean(runs, 'probes'):.1f}",
        f"{_mean(runs, 'held_s') / HOUR:.2f}",
        f"{_mean(runs, 'used_s') / HOUR:.2f}",
        *(_against(row, one, figure) for figure in ("wall_s", "held_s", "used_s")),
        f"{100 * statistics.fmean(_is_good(run) for run in runs):.0f}%",
        f"{sum(run['lost'] for run in runs)} of {sum(run['probes'] for run in runs)}",
    ]
    failed = sum(run["failure"] is not None for run in runs)
    figures[-1] += f"; searches without room: {failed}" if failed else ""
    return f"| {' | '.join(figures)} |"


def _mean(runs: Sequence[Run], figure: str) -> float:
    return statistics.fmean(run[figure] for run in runs)


def _is_good(run: Run) -> bool:
    return bool(run["share"] >= WITHIN)


def _pairs(row: Run, other: Run) -> list[tuple[Run, Run]]:
    """Return each search with the same one in another setting."""
    others = {(run["grid"], run["problem"], run["seed"]): run for run in other["runs"]}
    keyed = [((run["grid"], run["problem"], run["seed"]), run) for run in row["runs"]]
    return [(run, others[key]) for key, run in keyed if key in others]


def _ratio(ratios: Sequence[float]) -> str:
    """Return the geometric mean with its standard error."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.exp(statistics.fmean(logs))
    return f"{mean:.2f} +-{mean * statistics.stdev(logs) / math.sqrt(len(logs)):.2f}"


def _against(row: Run, one: Run, figure: str) -> str:
    """Return a ratio to the searches of one at a time; empty where there are none."""
    if row is one:
        return "1" if row["at_once"] == 1 else ""
    if one["at_once"] != 1:
        return ""
    return _ratio([run[figure] / other[figure] for run, other in _pairs(row, one)])


def _given_back(row: Run) -> Callable[[Run], float]:
    """Return what would be held if all lanes but one were given back when the search ends."""

    def held_s(run: Run) -> float:
        ended = run["wall_s"] if run["searched_s"] is None else run["searched_s"]
        return float(run["held_s"] - (row["at_once"] - 1) * row["gpus"] * (run["wall_s"] - ended))

    return held_s


def _waste(group: Rows) -> str:
    """Return what each doubling gains and costs, as a table."""
    head = "| at once | times as fast | GPU-hours held | held, idle lanes given back | used |"
    lines = [head, "|---" * 5 + "|"]
    for few, many in pairwise(group):
        back = [_given_back(row) for row in (many, few)]
        pairs = _pairs(many, few)
        figures = [
            _ratio([run[name] / other[name] for run, other in pairs])
            for name in ("held_s", "used_s")
        ]
        given = _ratio([back[0](run) / back[1](other) for run, other in pairs])
        faster = _ratio([other["wall_s"] / run["wall_s"] for run, other in pairs])
        texts = (f"{few['at_once']} to {many['at_once']}", faster, figures[0], given, figures[1])
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _deaths(group: Rows) -> str:
    """Return how many nodes are expected to die under a thousand searches."""
    texts = []
    for row in group:
        node_hours = _mean(row["runs"], "held_s") / HOUR / min(row["gpus"], NODE_GPUS)
        dead = 1000 * node_hours * row["failures"]["per_hour"]
        texts.append(f"{dead:.{2 if dead < 1 else 0}f} of {row['at_once']} at once")
    return f"Nodes expected to die under 1,000 searches: {', '.join(texts)}."


def _about(rows: Rows) -> str:
    cases = [row for row in rows if "runs" in row]
    searches, seconds = sum(len(row["runs"]) for row in cases), sum(r["seconds"] for r in cases)
    text = f"{searches} searches of {len(cases)} settings in {seconds / 60:.0f} minutes of one core"
    if about := next((row for row in rows if row["name"] == "about"), None):
        text += f" ({about['processor']}, {about['date'][:10]}, Optuna {about['optuna']})"
    return (
        f"{text}. Minutes, GPU-hours and probes are means; ratios are of the same searches, "
        f"geometric means with their standard errors. GPU-hours held: from the reservation of a "
        f"lane to the end of the search; used: while a probe was on it."
    )
