"""Searches with 1 to 32 probes at once on clusters of 8 to 1,024 GPUs, simulated: the package's own
loop, sampler and rules over recorded grids.

    python -m benchmarks.scale.run [--only NAME] [--table]
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict

import optuna

from benchmarks.command import Results, about_this_run, parser_of, run_and_tell
from benchmarks.scale.cases import Case, cases
from benchmarks.scale.simulation import GRIDS, simulated
from benchmarks.scale.table import table
from benchmarks.search.grid import Problem, problems, read_grid

RESULTS = GRIDS.parents[1] / "scale" / "results.jsonl"
EVERY = 5
"""Every fifth of the grids' problems is run: 24."""


def chosen() -> list[Problem]:
    """Return the problems that are run."""
    grids = [read_grid(file) for file in sorted(GRIDS.glob("*.jsonl"))]
    return [one for grid in grids for one in problems(grid)][::EVERY]


def runs(case: Case, over: list[Problem]) -> Iterator[tuple[Problem, int]]:
    """Yield the problem and the seed of each run of a case."""
    yield from ((problem, seed) for seed in range(case.seeds) for problem in over)


def run(results: Results) -> None:
    """Add the rows that are missing."""
    waiting, over = results.waiting(list(cases())), chosen()
    if waiting:
        results.add({"name": "about", **about_this_run(), "optuna": optuna.__version__})
    for case in waiting:
        began = time.process_time()
        rows = [simulated(case.setting, *one) for one in runs(case, over)]
        seconds = round(time.process_time() - began, 1)
        row = {"name": case.name, "table": case.table, "row": case.row, "seconds": seconds}
        results.add({**row, **asdict(case.setting), "runs": rows})
        print(f"{seconds:5.0f} s  {case.name}", flush=True)


def main() -> None:
    """Run what is missing, and write the table."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    run_and_tell(parser_of(__doc__, RESULTS).parse_args(), run, table)


if __name__ == "__main__":
    main()
