"""The command line of benchmarks that keep rows and make a table of them."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.estimate_exactness.run import rows_of

Rows = Sequence[dict[str, Any]]


def run_and_tell(
    description: str | None, here: Path, run: Callable[[Path], None], table: Callable[[Rows], str]
) -> None:
    """Run what is missing, then write and print the table.

    Args:
        here: the benchmark's folder, where its rows are unless `--results` says otherwise.
        run: adds rows to the file of that name.
        table: the rows as Markdown.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--results", type=Path, default=here / "results.jsonl")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if not options.table:
        run(options.results)
    text = table(list(rows_of(options.results)))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def done_in(results: Path) -> set[str]:
    """Names of the combinations that a file of results has, but for those that failed."""
    return {row["name"] for row in rows_of(results) if "failure" not in row}


def failures(rows: Rows) -> str:
    """A paragraph for each combination that failed."""
    failed = (row for row in rows if "failure" in row)
    return "".join(
        f"\nFailed: {row['name']}: {row['failure'].strip().splitlines()[-1]}\n" for row in failed
    )
