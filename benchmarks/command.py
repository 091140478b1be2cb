"""What benchmarks share: the file of rows that a run adds to, its command line, children that make
rows, and what somebody else needs to get the rows again.

Every benchmark of combinations runs what its file of rows lacks. `--results FILE --only NAME` runs
one of them without touching the rows that are committed; `scripts/nightly` does it for each.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from autotune.process.child_server import PRELOAD, ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
Rows = Sequence[dict[str, Any]]


class Named(Protocol):
    """A combination."""

    @property
    def name(self) -> str:
        """Its name, which no other has."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Results:
    """A file of rows, and which rows are wanted.

    Attributes:
        path: a JSON object a line; of several with one name the last counts.
        only: parts of names; a combination that has none of them is left out. Empty: all.
    """

    path: Path
    only: Sequence[str] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, one a combination."""
        return rows_of(self.path)

    def asked(self, name: str) -> bool:
        """True if a combination of this name is wanted."""
        return not self.only or any(part in name for part in self.only)

    def waiting(self, cases: Iterable[T]) -> list[T]:
        """Return the wanted combinations without a row, or with one of a failure.

        Raises:
            SystemExit: none has a wanted name.
        """
        wanted = [case for case in cases if self.asked(case.name)]
        if not wanted:
            sys.exit(f"no combination has a name with {' or '.join(self.only)}")
        known = {row["name"] for row in self.rows() if "failure" not in row}
        return [case for case in wanted if case.name not in known]

    def add(self, row: dict[str, Any]) -> None:
        """Write a row at once: the next one may fail."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def rows_of(results: Path) -> list[dict[str, Any]]:
    """Return the rows that a file holds: of each combination the last."""
    if not results.exists():
        return []
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return list({row["name"]: row for row in rows}.values())


def parser_of(description: str | None, results: Path) -> argparse.ArgumentParser:
    """Return the command line that benchmarks have in common.

    Args:
        results: the committed rows.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=results, help="file that gets the rows")
    parser.add_argument("--only", action="append", default=[], help="a part of wanted names")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    return parser


def run_and_tell(
    options: argparse.Namespace, run: Callable[[Results], None], table: Callable[[Rows], str]
) -> None:
    """Run what is missing, then write and print the table.

    Args:
        options: of `parser_of`.
        run: adds rows.
        table: the rows as Markdown.
    """
    results = Results(options.results, options.only)
    if not options.table:
        run(results)
    text = table(results.rows())
    results.path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def failures(rows: Rows) -> str:
    """Return a paragraph for each combination that failed."""
    failed = (row for row in rows if "failure" in row)
    return "".join(
        f"\nFailed: {row['name']}: {row['failure'].strip().splitlines()[-1]}\n" for row in failed
    )


# -- children that make rows

IMPORTED = (*PRELOAD, "deepspeed", "autotune.estimate.tracing.trace")


def server_environment() -> dict[str, str]:
    """Return what a child needs to find this code, and nothing from the network."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def answer(
    server: ChildServer, worker: str, request: dict[str, Any], folder: Path, limits: Limits
) -> dict[str, Any]:
    """Return the reply of a child; `failure` says why there is none."""
    child = ChildFolder(path=folder)
    folder.mkdir(parents=True)
    write_json(child.request, request)
    ending = server.run(child, worker, limits)
    found = read_json(child.reply)
    if found is None:
        said = child.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = {"failure": said[-1] if said else ending.why}
    return dict(found)


def run_in_children(
    cases: Sequence[T],
    results: Results,
    compare: Callable[[T, ChildServer, Path], dict[str, Any]],
    line_of: Callable[[dict[str, Any]], str],
    *,
    servers: int = 1,
    packages: Sequence[str] = (),
) -> None:
    """Add the row of each combination, several side by side.

    Args:
        compare: makes the row, given a new folder for it.
        line_of: a row for people.
        servers: how many at a time.
        packages: whose versions a row names besides.
    """
    about = {**about_this_run(), **{name: version(name) for name in packages}}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:

        def work(number: int) -> None:
            log = Path(scratch, f"server-{number}.log")
            with ChildServer(log, IMPORTED, server_environment()) as server:
                for index in range(number, len(cases), servers):
                    row = compare(cases[index], server, Path(scratch, str(index)))
                    results.add({**row, "about": about})
                    print(line_of(row), flush=True)

        with ThreadPoolExecutor(servers) as pool:
            list(pool.map(work, range(servers)))


# -- where rows come from


def about_this_run() -> dict[str, Any]:
    """Return what everybody else needs to get the rows again."""
    tree = _git("status", "--porcelain", "--", "autotune", "benchmarks/**/*.py")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") + (" and changes" if tree else ""),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip()
