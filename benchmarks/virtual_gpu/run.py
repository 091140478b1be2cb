"""Plans of drawn combinations against torch's real CUDA allocator, on a virtual GPU or a real one.

A row of `truth.jsonl` is what a real trainer took; it does not depend on the estimates, so it is
kept when they change. A row of `results.jsonl` is what the plan of the same combination says. What
either file holds is not run again; failures are.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.errors import UserError  # noqa: E402
from autotune.facts import Facts  # noqa: E402
from autotune.job import Job  # noqa: E402
from autotune.path_tasks import path_tasks  # noqa: E402
from autotune.placing import device_facts, placed  # noqa: E402
from autotune.probe.measure import probe_request  # noqa: E402
from autotune.probe.protocol import read_json, write_json  # noqa: E402
from autotune.probe.runner import ProbeServer  # noqa: E402
from autotune.run_folder import RunFolder  # noqa: E402
from autotune.space.knobs import Candidate  # noqa: E402
from autotune.space.load import load_job  # noqa: E402
from autotune.space.spaces import bind  # noqa: E402
from autotune.surveying import survey  # noqa: E402
from autotune.traced_paths import traced_in_children  # noqa: E402
from benchmarks.command import done_in  # noqa: E402
from benchmarks.estimate_exactness.run import about_this_run, rows_of, server_environment  # noqa: E402
from benchmarks.virtual_gpu.cases import Case, drawn  # noqa: E402
from benchmarks.virtual_gpu.models import write_model  # noqa: E402
from benchmarks.virtual_gpu.table import table  # noqa: E402

HERE = Path(__file__).parent
VIRTUAL = shlex.quote(f"{ROOT}/scripts/virtual_gpu") + " --kind {kind} -- python"
MAX_SECONDS = 600
NO_LIMIT = 1 << 50
Row = dict[str, Any]


class Bound:
    """A combination as a candidate of a job, with its facts."""

    def __init__(self, case: Case, folder: Path, server: ProbeServer) -> None:
        file = folder / "job.yaml"
        config = write_model(case.model, folder / "model")
        file.write_text(json.dumps(case.job(str(config))), encoding="utf-8")
        job, definition = load_job(file)
        self.job: Job
        self.job, kind = placed(job, case.kind)
        self.run = RunFolder(path=folder / "run")
        self.run.path.mkdir(parents=True)
        self.facts: Facts = device_facts(survey(self.job, self.run, server), kind)
        space = bind(definition, self.job, self.facts)
        wanted = case.knobs()
        self.candidate: Candidate = next(
            one
            for one in space.candidates
            if all(one.values.get(name, value) == value for name, value in wanted.items())
            and not one.values.get("dataloader_num_workers")
            and not one.values.get("use_liger_kernel")
            and not one.values.get("padding_free")
            and not one.values.get("activation_offloading")
            and not one.values.get("precompute_ref_log_probs")
        )


def planned(bound: Bound, server: ProbeServer, limit: int, cache: Path | None) -> Row:
    """What the plan says. Bytes."""
    (task,) = path_tasks(
        bound.job, bound.facts, [bound.candidate], rows=bound.run.rows, limit=limit, cache=cache
    )
    began = time.monotonic()
    (reply,) = traced_in_children([task], [server], bound.run.path / "traces")
    if reply.problem is not None:
        return {"failure": reply.problem}
    point = reply.points[0]
    return {
        "allocated_bytes": point.peak_allocated_bytes,
        "reserved_bytes": point.peak_reserved_bytes,
        "oom": point.oom,
        "retries": point.retries,
        "method": point.method,
        "phase": point.phase,
        "operator": point.operator,
        "seconds": round(time.monotonic() - began, 1),
    }


def measured(bound: Bound, folder: Path, command: str, kind: str, limit: int | None) -> Row:
    """What the real allocator took."""
    request = probe_request(
        bound.job,
        bound.facts,
        bound.candidate,
        rows=bound.run.rows,
        output_dir=str(folder / "out"),
        limit=limit,
    )
    folder.mkdir()
    write_json(folder / "request.json", request.plain())
    words = shlex.split(command.format(kind=kind))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [*words, str(HERE / "truth.py"), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=MAX_SECONDS,
    )
    found = read_json(folder / "truth.json")
    if found is None:
        return {"failure": "\n".join(done.stderr.strip().splitlines()[-3:])}
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def add(file: Path, row: Row) -> None:
    """A row more, written at once."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, sort_keys=True) + "\n")


def compare(
    case: Case, number: int, options: argparse.Namespace, about: Row, server: ProbeServer
) -> None:
    """Measure and plan a combination, as far as that is not done."""
    missing = case.name not in done_in(options.truth)
    unplanned = case.name not in done_in(options.results)
    if not missing and not unplanned:
        return
    head = {"name": case.name, "number": number, "seed": options.seed, "about": about}
    with tempfile.TemporaryDirectory(prefix="autotune-virtual-gpu-") as scratch:
        folder = Path(scratch)
        try:
            bound = Bound(case, folder, server)
        except (StopIteration, UserError) as error:
            add(options.truth, {**head, "failure": str(error) or "no such candidate"})
            return
        truth = {row["name"]: row for row in rows_of(options.truth)}.get(case.name, {})
        if missing:
            truth = measured(bound, folder / "truth", options.on, case.kind, None)
            add(options.truth, {**head, **truth, "case": case.plain()})
        if unplanned and "failure" not in truth:
            add(options.results, {**head, **planned(bound, server, NO_LIMIT, options.cache)})
    print(f"{number}: {case.name}", flush=True)


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default=VIRTUAL, help="how Python is run there; {kind}: on")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--truth", type=Path, default=HERE / "truth.jsonl")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--cache", type=Path, help="folder that keeps traces of this same code")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if not options.table:
        about = about_this_run()
        with (
            tempfile.TemporaryDirectory(prefix="autotune-virtual-gpu-") as log,
            ProbeServer(Path(log) / "server.log", environment=server_environment()) as server,
        ):
            for number in range(options.first, options.first + options.count):
                compare(drawn(options.seed, number), number, options, about, server)
    text = table(list(rows_of(options.truth)), list(rows_of(options.results)))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
