"""Record an oracle grid: every candidate of a job's space, probed for real in shuffled order, some
of them again for the noise, with what was estimated of each before any probe.

One JSON line about the run, one for each estimate, one for each probe. A recording that was cut
goes on where it was: run the same command again. A probe whose threads had to wait for a core says
little of its candidate: it is kept, not counted, and made again.
"""

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.facts import Facts  # noqa: E402
from autotune.job.job import Job  # noqa: E402
from autotune.plan.estimator import Estimator  # noqa: E402
from autotune.probe.measure import probe_task, probed  # noqa: E402
from autotune.probe.survey import memory_limit, survey  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.run_folder import RunFolder  # noqa: E402
from autotune.run.opening import expected  # noqa: E402
from autotune.space.bind import SearchSpace, bind  # noqa: E402
from autotune.space.job_file.load import load_job  # noqa: E402
from autotune.space.knobs import Candidate, from_knobs  # noqa: E402
from autotune.space.trl_config import settings  # noqa: E402
from benchmarks.search.grid import undisturbed  # noqa: E402

PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "optuna")
REPEATED = 0.1
"""Share of the candidates that is probed `REPEATS` times; in the end, of the fastest too."""
REPEATS = 3
TRIES = 3
"""How often a disturbed probe is made."""


@dataclass(frozen=True)
class Recording:
    """A surveyed job with its server, and the file that the rows go to."""

    job: Job
    facts: Facts
    space: SearchSpace
    run: RunFolder
    server: ChildServer
    limit: int
    file: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self, row: dict[str, Any]) -> None:
        """One more row."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows of a kind that are there."""
        if not self.file.exists():
            return []
        lines = map(json.loads, self.file.read_text(encoding="utf-8").splitlines())
        return [row for row in lines if row["row"] == kind and undisturbed(row)]

    def about(self) -> dict[str, Any]:
        """What everybody else needs to get the rows again."""
        command = ["benchmarks/search/record.py", *sys.argv[1:]]
        return {
            "row": "about",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(command),
            "commit": _commit(),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
            "device": self.facts.device.name,
            "threads": len(os.sched_getaffinity(0)),
            "limit_bytes": self.limit,
            "steps": round(self.facts.data.rows / self.job.global_batch_size),
        }

    def expect(self) -> None:
        """Estimate all candidates, before any is probed."""
        estimator = Estimator(
            job=self.job,
            facts=self.facts,
            limit=self.limit,
            server=self.server,
            folder=self.run.path / "estimates",
            rows=self.run.rows,
        )
        expectations = expected(estimator, self.space, self.run)
        plain = expectations.plain()
        self.write({"row": "prior", **{k: plain[k] for k in ("prior", "limit_bytes")}})
        for candidate in self.space.candidates:
            estimate = plain["estimates"][candidate.key]
            self.write({"row": "estimate", "knobs": candidate.knobs, "estimate": estimate})

    def probe(self, candidate: Candidate) -> None:
        """One real probe, to its end; once more where others took the cores meanwhile."""
        for _ in range(TRIES):
            if undisturbed(self._probe(candidate)):
                return

    def _probe(self, candidate: Candidate) -> dict[str, Any]:
        number = next(self.numbers)
        before = os.getloadavg()[0]
        chosen = settings(self.job, self.facts, candidate, str(self.run.output))
        task = probe_task(chosen, rows=self.run.rows, limit=self.limit)
        measured = probed(self.server, self.run.probe(number), task.plain())
        kept = {name: value for name, value in measured.plain().items() if value not in (None, [])}
        load = [round(n, 2) for n in (before, os.getloadavg()[0])]
        row = {"row": "probe", "knobs": candidate.knobs, "measurement": kept, "load": load}
        self.write(row)
        figure = f"{measured.tokens_per_s:.0f} tokens/s" if measured.tokens_per_s else ""
        print(f"{number}: {measured.outcome} {figure} in {measured.seconds:.1f} s", flush=True)
        return row


def order(candidates: tuple[Candidate, ...], seed: int) -> Iterator[Candidate]:
    """All candidates shuffled, a tenth of them three times."""
    drawn = random.Random(seed)
    again = drawn.sample(candidates, round(REPEATED * len(candidates)))
    everything = [*candidates, *again * (REPEATS - 1)]
    drawn.shuffle(everything)
    yield from everything


def record(options: argparse.Namespace, scratch: Path) -> None:
    """Record, or go on recording."""
    job, definition = load_job(options.job, options.set)
    run = RunFolder(path=scratch / "run")
    run.path.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with ChildServer(run.log, environment={"PYTHONPATH": path}) as server:
        facts = survey(job, run, server)
        space = bind(definition, job, facts)
        limit = memory_limit(job, facts.device)
        recording = Recording(job, facts, space, run, server, limit, options.out)
        if not recording.rows("about"):
            recording.write(recording.about())
        if not recording.rows("estimate"):
            recording.expect()
        done = Counter(from_knobs(row["knobs"]).key for row in recording.rows("probe"))
        ends = time.monotonic() + 60 * options.minutes
        for candidate in order(space.candidates, options.seed):
            if done[candidate.key]:
                done[candidate.key] -= 1
                continue
            if time.monotonic() > ends:
                print("cut; run the same command again", flush=True)
                return
            recording.probe(candidate)
        for candidate in fastest(recording.rows("probe")):
            recording.probe(candidate)


def fastest(rows: list[dict[str, Any]]) -> Iterator[Candidate]:
    """The fastest tenth, in turns, as often as they lack probes: the best of many single readings
    is too good to be true."""
    speeds: dict[str, list[float]] = {}
    for row in rows:
        if row["measurement"]["outcome"] == "ok":
            key = json.dumps(row["knobs"])
            speeds.setdefault(key, []).append(row["measurement"]["tokens_per_s"])
    order = sorted(speeds, key=lambda key: -median(speeds[key]))
    for turn in range(1, REPEATS):
        for key in order[: round(REPEATED * len(order))]:
            if len(speeds[key]) <= turn:
                yield from_knobs(json.loads(key))


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "autotune")
    return git("rev-parse", "HEAD") + (" and changes" if changed else "")


def main() -> None:
    """Read the flags and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="the job file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="the file of the grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after this long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grid-") as scratch:
        record(options, Path(scratch))


if __name__ == "__main__":
    main()
