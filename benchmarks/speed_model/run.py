"""Estimated against measured step times of many candidates of one small job, on the CPU.

Every candidate is traced without a device and estimated from the ceilings of this machine; then all
are probed for real, in shuffled order, some of them twice for the noise. `results.jsonl` gets a row
after each probe; `results.md` is made of it.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.estimate.records.events import Work  # noqa: E402
from autotune.estimate.speed.ceilings import Ceilings  # noqa: E402
from autotune.estimate.speed.step_time import (  # noqa: E402
    TimeParts,
    step_parts,
    work_time,
)
from autotune.estimate.speed.variants import ShapeTimes  # noqa: E402
from autotune.facts import Facts  # noqa: E402
from autotune.job.job import Job  # noqa: E402
from autotune.plain_data import from_plain, to_plain  # noqa: E402
from autotune.probe import measure  # noqa: E402
from autotune.probe.survey import survey  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder, read_json, write_json  # noqa: E402
from autotune.process.run_folder import RunFolder  # noqa: E402
from autotune.space.definition import SpaceDefinition  # noqa: E402
from autotune.space.job_file.load import load_job  # noqa: E402
from autotune.space.knobs import Candidate  # noqa: E402
from autotune.space.trl_config import settings  # noqa: E402
from benchmarks.speed_model.cases import JOB, MODEL, chosen, levels  # noqa: E402
from benchmarks.speed_model.table import table  # noqa: E402
from benchmarks.speed_model.works import added, split_off_loss, work_counts  # noqa: E402

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "trl", "accelerate")
WORKERS = "benchmarks.speed_model.worker"
CEILINGS = "autotune.estimate.speed.measuring.worker:measure"
Works = list[tuple[Work, int]]


@dataclass(frozen=True)
class Bench:
    """The surveyed job in each precision, and a server."""

    jobs: dict[str, Job]
    definition: SpaceDefinition
    facts: Facts
    run: RunFolder
    server: ChildServer
    processor_time: bool

    def ask(self, name: str, worker: str, request: dict[str, Any]) -> dict[str, Any]:
        """What a child answers."""
        folder = ChildFolder(path=self.run.path / name)
        folder.path.mkdir(parents=True)
        write_json(folder.request, request)
        self.server.run(folder, worker, Limits(wall_s=600))
        reply: dict[str, Any] | None = read_json(folder.reply)
        if reply is None:
            said = folder.stderr.read_text(encoding="utf-8", errors="replace")
            sys.exit(f"{name} failed:\n{said[-3000:]}")
        return reply

    def ceilings(self, threads: int) -> Ceilings:
        """Of this machine, now."""
        request = {"device_kind": "cpu", "device_index": 0, "threads": threads}
        worker = f"{WORKERS}:ceilings_by_processor_time" if self.processor_time else CEILINGS
        return from_plain(Ceilings, self.ask("ceilings", worker, request)["ceilings"])

    def trace(self, name: str, precision: str, candidate: Candidate) -> dict[str, Any]:
        """The traced work of a candidate."""
        chosen = settings(self.jobs[precision], self.facts, candidate, str(self.run.output))
        request = measure.probe_request(chosen, rows=self.run.rows, limit=None)
        return self.ask(name, f"{WORKERS}:trace", request.plain())

    def probe(self, number: int, precision: str, candidate: Candidate) -> dict[str, Any]:
        """The measurement of a candidate, and how busy the machine was before and after."""
        before = os.getloadavg()[0]
        if self.processor_time:
            measure.WORKER = f"{WORKERS}:probe_by_processor_time"
        chosen = settings(self.jobs[precision], self.facts, candidate, str(self.run.output))
        limit = self.facts.device.free_bytes
        task = measure.probe_task(chosen, rows=self.run.rows, limit=limit)
        measured = measure.probed(self.server, self.run.probe(number), task.plain())
        kept = {name: value for name, value in measured.plain().items() if value not in (None, [])}
        return {"measurement": kept, "load": [round(n, 2) for n in (before, os.getloadavg()[0])]}


# -- estimates


def works(rows: Sequence[Any]) -> Works:
    """The work of a trace, back from JSON."""
    return [(one, times) for row, times in rows for one, _ in work_counts([row])]


def estimate(
    traced: dict[str, Any], accumulation: int, time_of: Callable[[Works], TimeParts]
) -> TimeParts:
    """One optimizer step of a candidate, over all micro-batches of its sample."""
    rows, rest, loss = traced["rows"], {}, {}
    for length, work in zip(traced["lengths"], traced["micro"], strict=True):
        most, chunks = split_off_loss(works(work))
        rest[rows, length] = time_of(most)
        if chunks:
            padded = rows * length
            loss[_logits(traced, padded, padded), 1] = time_of(chunks)
    body, head = ShapeTimes.fit(rest), ShapeTimes.fit(loss or {(1, 1): TimeParts()})
    micro = [
        added(body.at(rows, padded // rows), head.at(_logits(traced, tokens, padded), 1))
        for tokens, padded in traced["sample"]
    ]
    return step_parts(micro, time_of(works(traced["optimizer"])), accumulation)


def _logits(traced: dict[str, Any], tokens: int, padded: int) -> int:
    """Rows of logits that a chunked loss computes: whole chunks of tokens with a label, where
    there are as many tokens at all. The first token of a row has none."""
    size = traced["chunk_rows"]
    labelled = max(tokens - traced["micro_batch"], 1)
    return min(-(-labelled // size) * size, padded)


def flops(work: Works) -> TimeParts:
    """Floating point operations, as if each took a second."""
    return TimeParts(matmul_s=float(sum(times * one.flops for one, times in work)))


def estimates(traced: dict[str, Any], candidate: Candidate, ceilings: Ceilings) -> dict[str, Any]:
    """What is known of a candidate before it is probed; times of one optimizer step."""
    steps = candidate.gradient_accumulation_steps
    sizes = zip(*traced["sample"], strict=True)
    tokens, padded = (mean(column) for column in sizes)
    return {
        "parts": asdict(estimate(traced, steps, lambda work: work_time(work, ceilings))),
        "flops": estimate(traced, steps, flops).total,
        "tokens_per_step": steps * tokens,
        "padded_tokens_per_step": steps * padded,
        "trace_s": round(traced["seconds"], 2),
    }


# -- the run


def about_this_run(bench: Bench, ceilings: Ceilings, seconds: float) -> dict[str, Any]:
    """What everybody else needs to get the rows again."""
    tree = _git("status", "--porcelain", "--", "autotune", "benchmarks/speed_model/*.py")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") + (" and changes" if tree else ""),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "device": bench.facts.device.name,
        "threads": bench.facts.device.cores,
        "clock": "processor" if bench.processor_time else "wall",
        "ceilings_s": round(seconds, 1),
        "ceilings": to_plain(ceilings),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def run(options: argparse.Namespace, scratch: Path) -> None:
    """Trace, estimate and probe; rows to `options.results`."""
    model = scratch / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    folder = RunFolder(path=scratch / "run")
    folder.path.mkdir()
    sets = [f"model={model / 'config.json'}", *JOB]
    loaded = {name: load_job(None, [*sets, f"precision={name}"]) for name in ("bf16", "fp32")}
    jobs = {name: job for name, (job, _) in loaded.items()}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with ChildServer(folder.log, environment={"PYTHONPATH": path}) as server:
        facts = survey(jobs["bf16"], folder, server)
        bench = Bench(
            jobs, loaded["bf16"][1], facts, folder, server, processor_time=options.processor_time
        )
        measure_all(bench, options)


def measure_all(bench: Bench, options: argparse.Namespace) -> None:
    """All candidates, each once, and some a second time among them."""
    candidates = chosen(bench.jobs, bench.definition, bench.facts, options.count, options.seed)
    traces = []
    for number, (precision, candidate) in enumerate(candidates):
        traces.append(bench.trace(f"traces/{number}", precision, candidate))
        print(f"traced {number + 1} of {len(candidates)}", end="\r", flush=True)
    began = time.perf_counter()
    ceilings = bench.ceilings(bench.facts.device.cores)
    about = about_this_run(bench, ceilings, time.perf_counter() - began)
    options.results.write_text(json.dumps({"about": about}) + "\n", encoding="utf-8")
    order = [*range(len(candidates)), *range(min(options.repeats, len(candidates)))]
    random.Random(options.seed).shuffle(order)
    for probe, number in enumerate(order):
        precision, candidate = candidates[number]
        row = {
            "candidate": number,
            "levels": levels(precision, candidate),
            "knobs": candidate.knobs,
            **estimates(traces[number], candidate, ceilings),
            **bench.probe(probe, precision, candidate),
        }
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(line_of(row), flush=True)


def line_of(row: dict[str, Any]) -> str:
    """One row for people."""
    measured = row["measurement"]
    figures = f"{sum(v for k, v in row['parts'].items() if k != 'overlapped'):7.3f} s estimated"
    real = f"{measured.get('step_time_s', float('nan')):7.3f} s {measured['outcome']}"
    return f"{figures} {real}  {' '.join(map(str, row['levels'].values()))}  load {row['load']}"


def main() -> None:
    """Run, then write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=44, help="candidates")
    parser.add_argument("--repeats", type=int, default=8, help="candidates probed twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, help="run on the last cores only, this many")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time on the processor, not on the wall; for one core of a shared machine",
    )
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--keep", type=Path, help="a new folder for the traces and the probes")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if options.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    if options.processor_time and options.cores != 1:
        parser.error("--processor-time needs --cores 1: the time of several threads adds up")
    if not options.table:
        with tempfile.TemporaryDirectory(prefix="speed-model-") as scratch:
            run(options, options.keep or Path(scratch, "job"))
    lines = options.results.read_text(encoding="utf-8").splitlines()
    text = table([json.loads(line) for line in lines])
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
