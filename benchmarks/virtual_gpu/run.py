"""Plans of drawn combinations against torch's real CUDA allocator, on a GPU or on a virtual one.

A row of `truth.jsonl` is what a real trainer took; it does not depend on the estimates, so it is
kept when they change. A row of `results.jsonl` is what the plan of the same combination says. Each
combination is run twice: with all of the device, and under a limit drawn within 10% of what it
reserved. What either file holds is not run again; failures are. Combinations of other kinds than
the machine's are left out.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.errors import UserError  # noqa: E402
from autotune.facts import Facts, devices  # noqa: E402
from autotune.facts.device_kinds import find_kind  # noqa: E402
from autotune.job.job import Job  # noqa: E402
from autotune.plan.children import traced_in_children  # noqa: E402
from autotune.plan.device import device_facts, placed  # noqa: E402
from autotune.plan.progress import Progress  # noqa: E402
from autotune.plan.variants import variant_tasks  # noqa: E402
from autotune.probe.measure import probe_request  # noqa: E402
from autotune.probe.survey import survey  # noqa: E402
from autotune.process.child_server import ChildServer  # noqa: E402
from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder, read_json, write_json  # noqa: E402
from autotune.process.run_folder import RunFolder  # noqa: E402
from autotune.space.bind import bind  # noqa: E402
from autotune.space.job_file.load import load_job  # noqa: E402
from autotune.space.knobs import Candidate  # noqa: E402
from autotune.space.trl_config import settings  # noqa: E402
from benchmarks.command import about_this_run, rows_of, server_environment  # noqa: E402
from benchmarks.virtual_gpu.cases import Case, drawn  # noqa: E402
from benchmarks.virtual_gpu.models import write_model  # noqa: E402
from benchmarks.virtual_gpu.table import table  # noqa: E402

HERE = Path(__file__).parent
TRUTH = "benchmarks.virtual_gpu.truth:measure_peaks"
LIMITS = Limits(wall_s=900, stall_s=300)
NEAR = 0.1
"""A limit is drawn within this share of the reserved peak."""
Row = dict[str, Any]


class Bound:
    """A combination as a candidate of a job, with its facts."""

    def __init__(self, case: Case, folder: Path, server: ChildServer) -> None:
        file = folder / "job.yaml"
        config = write_model(case.model, folder / "model")
        file.write_text(json.dumps(case.job(str(config))), encoding="utf-8")
        job, definition = load_job(file)
        self.job: Job
        self.job, kind = placed(job, case.kind)
        self.run = RunFolder(path=folder / "run")
        self.run.path.mkdir(parents=True)
        self.facts: Facts = device_facts(survey(self.job, self.run, server), kind, assume=False)
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

    def planned(self, server: ChildServer, limit: int, cache: Path) -> Row:
        """What the plan says. Bytes."""
        (task,) = variant_tasks(
            [settings(self.job, self.facts, self.candidate)],
            rows=self.run.rows,
            limit=limit,
            cache=cache,
        )
        began = time.monotonic()
        (reply,) = traced_in_children([task], server, self.run.path / f"traces-{limit}", Progress())
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

    def measured(self, server: ChildServer, limit: int | None) -> Row:
        """What the real allocator took. Bytes."""
        folder = ChildFolder(path=self.run.path / f"truth-{limit}")
        chosen = settings(self.job, self.facts, self.candidate, str(folder.scratch))
        request = probe_request(chosen, rows=self.run.rows, limit=limit)
        folder.path.mkdir()
        write_json(folder.request, request.plain())
        began = time.monotonic()
        ending = server.run(folder, TRUTH, LIMITS)
        found = read_json(folder.reply)
        if not isinstance(found, dict):
            said = folder.stderr.read_text(encoding="utf-8", errors="replace").strip()
            return {"failure": said[-300:] or ending.why}
        return {**found, "seconds": round(time.monotonic() - began, 1)}


def limit_of(number: int, reserved: int) -> int:
    """A limit near what combination `number` reserved, drawn by that number. Bytes."""
    return int(reserved * (1 + random.Random(number).uniform(-NEAR, NEAR)))


def add(file: Path, row: Row) -> None:
    """A row more, written at once."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, sort_keys=True) + "\n")


def _done_in(results: Path) -> set[str]:
    return {row["name"] for row in rows_of(results) if "failure" not in row}


def compare(
    case: Case, number: int, options: argparse.Namespace, about: Row, server: ChildServer
) -> None:
    """Measure and plan a combination, as far as that is not done."""
    missing = case.name not in _done_in(options.truth)
    unplanned = not options.truth_only and case.name not in _done_in(options.results)
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
            truth = bound.measured(server, None)
            if "failure" not in truth and not truth["oom"]:
                limit = limit_of(number, truth["reserved_bytes"])
                truth["limited"] = {"limit_bytes": limit, **bound.measured(server, limit)}
            add(options.truth, {**head, **truth, "case": case.plain()})
        if unplanned and "failure" not in truth and not truth["oom"]:
            limit = truth["limited"]["limit_bytes"]
            plan = bound.planned(server, truth["free_bytes"], folder / "cache")
            if "failure" not in plan:
                plan["limited"] = bound.planned(server, limit, folder / "cache")
            add(options.results, {**head, **plan})
    print(f"{number}: {case.name}", flush=True)


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--truth", type=Path, default=HERE / "truth.jsonl")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--truth-only", action="store_true", help="plan nothing")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    options = parser.parse_args()
    if not options.table:
        about, kind = about_this_run(), find_kind(devices.gpu(0).name).name
        with (
            tempfile.TemporaryDirectory(prefix="autotune-virtual-gpu-") as log,
            ChildServer(Path(log) / "server.log", environment=server_environment()) as server,
        ):
            for number in range(options.first, options.first + options.count):
                case = drawn(options.seed, number)
                if find_kind(case.kind).name == kind:
                    compare(case, number, options, about, server)
    text = table(list(rows_of(options.truth)), list(rows_of(options.results)))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
