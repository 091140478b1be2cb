"""Replay searches against recorded grids: probes to within 2% of the best, OOMs, regret.

    python benchmarks/search/replay.py            # every grid in grids/, all searches
    python benchmarks/search/replay.py --only autotune --seeds 5

A replayed probe answers with the recorded speed and peak of its candidate, each times a draw of the
grid's own noise. Problems are the whole grid and its parts with one knob pinned, each with all the
memory it wants and with limits that 75, 50 and 25% of the candidates fit into. Estimates are those
written down before the grid was recorded.
"""

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.probe.protocol import Measurement  # noqa: E402
from autotune.space.knobs import Candidate  # noqa: E402
from benchmarks.search.grid import Grid, Problem, problems, read_grid  # noqa: E402
from benchmarks.search.searchers import SEARCHERS, Searcher  # noqa: E402

HERE = Path(__file__).parent
WITHIN = 0.98
MOST_PROBES = 60
BUDGETS = (3, 6, 12)
OOM_SHARE = 0.3
"""An out-of-memory tells this share of the bytes that are really missing."""


@dataclass(frozen=True)
class Outcome:
    """One replay. `probes` to the first within 2% of the best, None where it never got there."""

    grid: str
    problem: str
    searcher: str
    seed: int
    probes: int | None
    seconds: float
    ooms: int
    made: int
    regret: dict[int, float | None]
    """By number of probes: how far the best measured by then is below the best there is."""


def probed(problem: Problem, candidate: Candidate, drawn: random.Random) -> Measurement:
    """What a probe of a candidate says this time."""
    truth, (speed_sd, peak_sd) = problem.truth(candidate), problem.grid.noise
    peak = round(truth.peak_bytes * math.exp(drawn.gauss(0, peak_sd)))
    speed = truth.tokens_per_s * math.exp(drawn.gauss(0, speed_sd))
    if peak > problem.limit_bytes:
        return Measurement(
            outcome="oom",
            reason="replayed",
            missing_bytes=max(round(OOM_SHARE * (peak - problem.limit_bytes)), 1),
            memory_limit_bytes=problem.limit_bytes,
        )
    return Measurement(outcome="ok", reason="replayed", tokens_per_s=speed, peak_memory_bytes=peak)


def replay(problem: Problem, searcher: Searcher, seed: int) -> Outcome:
    """One search from its first probe until it has found the best, or gives up."""
    drawn, search = random.Random(f"{problem.name} {seed}"), searcher(problem, seed)
    found, seconds, ooms, made = None, 0.0, 0, 0
    best_read, chosen_true = 0.0, 0.0
    regret: dict[int, float | None] = dict.fromkeys(BUDGETS)
    answer: Measurement | None = None
    while made < MOST_PROBES and (found is None or made < BUDGETS[-1]):
        try:
            candidate = search.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            break
        answer, truth = probed(problem, candidate, drawn), problem.truth(candidate)
        made += 1
        if found is None:
            seconds += truth.seconds
            ooms += answer.outcome == "oom"
        if answer.outcome == "ok" and (answer.peak_memory_bytes or 0) <= problem.allowed_bytes:
            if truth.tokens_per_s >= WITHIN * problem.best and found is None:
                found = made
            if (answer.tokens_per_s or 0) > best_read:
                best_read, chosen_true = answer.tokens_per_s or 0, truth.tokens_per_s
        if made in regret:
            regret[made] = max(1 - chosen_true / problem.best, 0.0)
    last = max(1 - chosen_true / problem.best, 0.0)  # who gives up keeps what it has
    regret = {budget: last if value is None else value for budget, value in regret.items()}
    return Outcome(
        grid=problem.grid.name,
        problem=problem.name,
        searcher=searcher.name,
        seed=seed,
        probes=found,
        seconds=round(seconds, 1),
        ooms=ooms,
        made=made,
        regret=regret,
    )


def replay_all(file: Path, name: str, seeds: int) -> list[dict[str, Any]]:
    """Every problem of a grid, by one search."""
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    searcher = next(one for one in SEARCHERS if one.name == name)
    grid = read_grid(file)
    return [
        asdict(replay(problem, searcher, seed))
        for problem in problems(grid)
        if name not in WHOLE_ONLY or problem.name.startswith("all,")
        for seed in range(seeds)
    ]


# -- the table


def table(rows: Sequence[dict[str, Any]], grids: Sequence[Grid], seconds: float) -> str:
    """`results.md`."""
    lines = ["# Searches replayed against recorded grids", ""]
    for grid in grids:
        own = [row for row in rows if row["grid"] == grid.name]
        about = grid.about
        lines += [
            f"## {grid.name}",
            "",
            f"{len(grid.candidates)} candidates on {about['device']}, {about['threads']} cores; "
            f"torch {about['torch']}, trl {about['trl']}; recorded {about['date'][:10]} by "
            f"`{about['command']}`.",
            f"Noise of one probe: {100 * grid.noise[0]:.1f}% of the speed, "
            f"{100 * grid.noise[1]:.1f}% of the peak. The truths are known to "
            f"{100 * grid.error:.1f}% (standard error; a reading left out is missed by "
            f"{100 * grid.left_out:.1f}%). "
            f"{len({row['problem'] for row in own})} problems.",
            "",
            "| search | replays | probes to within 2%: median | 90% | device-s: median | OOMs: "
            "median | 90% | never | " + " | ".join(f"regret after {n}" for n in BUDGETS) + " |",
            "|---" * (8 + len(BUDGETS)) + "|",
        ]
        by_search = defaultdict(list)
        for row in own:
            by_search[row["searcher"]].append(row)
        lines += [_line(name, some) for name, some in by_search.items()]
        lines.append("")
    lines.append(f"{len(rows)} replays; the last command took {seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def _numbered(row: dict[str, Any]) -> dict[str, Any]:
    """A row read from JSON, where the keys of an object are texts."""
    return {**row, "regret": {int(budget): value for budget, value in row["regret"].items()}}


def _line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    probes = sorted(math.inf if row["probes"] is None else row["probes"] for row in rows)
    ooms = sorted(row["ooms"] for row in rows)
    never = sum(row["probes"] is None for row in rows)
    regrets = [
        f"{100 * statistics.fmean(row['regret'][budget] for row in rows):.1f}%"
        for budget in BUDGETS
    ]
    figures = [
        str(len(rows)),
        _number(_quantile(probes, 0.5)),
        _number(_quantile(probes, 0.9)),
        f"{statistics.median(row['seconds'] for row in rows):.0f}",
        _number(_quantile(ooms, 0.5)),
        _number(_quantile(ooms, 0.9)),
        f"{100 * never / len(rows):.0f}%",
        *regrets,
    ]
    return f"| {name} | " + " | ".join(figures) + " |"


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(math.ceil(share * len(ordered)) - 1, len(ordered) - 1)]


def _number(value: float) -> str:
    return "never" if value == math.inf else f"{value:.0f}"


SLOW = {"TPE, constrained": 3, "TPE": 3, "GP": 2}
"""Optuna's samplers take milliseconds to seconds a proposal: fewer seeds."""
WHOLE_ONLY = {"GP"}
"""Half a second a proposal: the whole grid only, not its parts."""


def main() -> None:
    """Replay and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grids", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", action="append", help="a search, by its name")
    parser.add_argument("--out", type=Path, default=HERE / "results.md")
    options = parser.parse_args()
    files = options.grids or sorted((HERE / "grids").glob("*.jsonl"))
    names = options.only or [one.name for one in SEARCHERS]
    asked = [
        (file, name, min(options.seeds, SLOW.get(name, options.seeds)))
        for file in files
        for name in names
    ]
    began = time.perf_counter()
    with ProcessPoolExecutor() as pool:
        rows = [row for some in pool.map(replay_all, *zip(*asked, strict=True)) for row in some]
    kept = options.out.with_name("replays.jsonl")
    if options.only is not None and kept.exists():
        before = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
        rows += [_numbered(row) for row in before if row["searcher"] not in names]
    order = [one.name for one in SEARCHERS]
    rows.sort(key=lambda row: (row["grid"], order.index(row["searcher"])))
    text = table(rows, [read_grid(file) for file in files], time.perf_counter() - began)
    options.out.write_text(text, encoding="utf-8")
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
