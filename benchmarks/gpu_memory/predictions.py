"""What is expected of each candidate, written down before anything is measured.

A file of predictions is a header (one JSON object: versions, device, date, command, and the jobs
and models themselves, so that it can be measured without this code) and a row a candidate, in the
order in which they are to be probed.
"""

import json
import os
import platform
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune.errors import UserError, user_error
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.facts.devices import DeviceFacts
from autotune.job.job import Job
from autotune.plan.cache import PlanCache
from autotune.plan.device import WORTH_MEASURING, device_facts, placed, planned_limit
from autotune.plan.estimator import Estimator
from autotune.plan.trace_choice import Effort
from autotune.probe.survey import survey
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.space.bind import bind
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.load import load_job
from benchmarks.gpu_memory.cases import MODELS, Case, chosen, probe_seconds, some_paths
from scripts.gpu_smoke import said_by

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A file of predictions, read."""

    about: Row
    rows: Sequence[Row]


@contextmanager
def serving(folder: Path) -> Iterator[ChildServer]:
    """A forkserver whose children find this checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with ChildServer(folder / "server.log", environment={"PYTHONPATH": path}) as server:
        yield server


def opened(folder: Path, model: Row, job: Row) -> tuple[Job, SpaceDefinition]:
    """A job in a folder of its own."""
    shape = folder / "shape" / "config.json"
    shape.parent.mkdir(parents=True, exist_ok=True)
    shape.write_text(json.dumps(model), encoding="utf-8")
    file = folder / "job.yaml"  # JSON is YAML
    file.write_text(json.dumps({"model": str(shape), **job}), encoding="utf-8")
    return load_job(file)


def predict(cases: Sequence[Case], device: str | None, seed: int, scratch: Path) -> Predictions:
    """Choose candidates of all cases and estimate them.

    Args:
        device: a kind of GPU; None: the device that is here.
    """
    by_case: list[list[Row]] = []
    left_out, seconds, began, header = [], {}, time.monotonic(), told()
    # Not the user's cache: what was traced by another state of this code must not be believed.
    cache = PlanCache(path=Path(os.environ.get("AUTOTUNE_CACHE") or scratch / "cache"))
    with serving(scratch) as server:
        for case in cases:
            since = time.monotonic()
            rows = _of_case(case, device, f"{case.name} {seed}", scratch, cache, server)
            seconds[case.name] = round(time.monotonic() - since, 1)
            left_out += [] if rows else [case.name]
            by_case.append(rows)
            print(
                f"memory: {case.name}: {len(rows)} candidates, {seconds[case.name]:.0f} s",
                flush=True,
            )
    about = {
        "schema": 1,
        "measurement": "memory",
        "device": device or "here",
        "seed": seed,
        **header,
        "jobs": {case.name: {"model": case.model, "job": case.job()} for case in cases},
        "models": {case.model: MODELS[case.model] for case in cases},
        "left_out": left_out,
        "seconds": round(time.monotonic() - began, 1),
        "seconds_by_case": seconds,
    }
    return Predictions(about=about, rows=in_rounds(by_case, seed))


def in_rounds(by_case: Sequence[Sequence[Row]], seed: int) -> list[Row]:
    """One candidate of each case after the other, the most telling rounds first; each shuffled."""
    order, draw = [], random.Random(seed)
    for number in range(max(map(len, by_case), default=0)):
        some = [rows[number] for rows in by_case if number < len(rows)]
        draw.shuffle(some)
        order += [{"round": number, **row} for row in some]
    return order


def _of_case(
    case: Case, device: str | None, seed: str, scratch: Path, cache: PlanCache, server: ChildServer
) -> list[Row]:
    """The rows of one case, the most telling first; none where nothing fits this device. The way is
    that of `autotune plan`, but that only some paths are traced."""
    folder = scratch / case.name
    job, definition = opened(folder, MODELS[case.model], case.job())
    try:
        estimator = estimator_of(job, device, folder, cache, server)
    except UserError as error:
        if {problem.where for problem in error.problems} != {"devices.memory"}:
            raise
        return []  # more than this device has
    space = bind(definition, estimator.job, estimator.facts)
    candidates = some_paths(space.candidates, case.paths, seed)
    estimates, limit = estimator.estimates(candidates), estimator.limit
    return [
        {
            "case": case.name,
            "knobs": one.knobs,
            "limit_bytes": limit,
            "estimate": {**estimates[one.key].plain(), "fits": estimates[one.key].fits},
            "expected_probe_s": round(probe_seconds(one, estimates[one.key]), 2),
        }
        for one in chosen(candidates, estimates, limit, case.chosen, seed)
    ]


def estimator_of(
    job: Job,
    device: str | None,
    folder: Path,
    cache: PlanCache,
    server: ChildServer,
    ceilings: Ceilings | None = None,
) -> Estimator:
    """Estimates candidates of a job on a kind of GPU; None: on the device that is here.

    Args:
        ceilings: rates of the device; None: tabled, or measured on the one that is here.
    """
    job, kind = placed(job, device)
    run = RunFolder(path=folder / "run")
    run.path.mkdir(parents=True, exist_ok=True)
    facts: Facts = device_facts(survey(job, run, server), kind, assume=False)
    estimator = Estimator(
        job=job,
        facts=facts,
        limit=planned_limit(job, facts),
        server=server,
        folder=run.path / "traces",
        rows=run.rows,
        ceilings=ceilings,
        effort=Effort(first=None),
        cache=cache,
    )
    return estimator if ceilings else estimator.with_ceilings(kind, WORTH_MEASURING)


def told() -> Row:
    """What a recorded result must come with, whatever the device."""
    changed = said_by("git", "-C", str(ROOT), "status", "--porcelain", "--", "autotune")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["scripts/gpu.sh", "memory", *sys.argv[1:]]),
        "commit": said_by("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "changed": changed.splitlines() if changed else [],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write(file: Path, predictions: Predictions) -> None:
    """Write a file of predictions, whole or not at all."""
    rows = [{"about": predictions.about}, *predictions.rows]
    lines = [json.dumps(row, sort_keys=True) for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + ".draft")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(file)


def read(file: Path) -> Predictions:
    """Read a file of predictions.

    Raises:
        UserError: it is missing, or is none.
    """
    rows = read_rows(file)
    hint = "name a file that `scripts/gpu.sh memory FILE --predict DEVICE` wrote"
    about = rows[0].get("about") if rows else None
    if not isinstance(about, dict) or about.get("measurement") != "memory":
        raise user_error("these are no predictions of memory", where=str(file), hint=hint)
    for number, row in enumerate(rows[1:], start=2):
        if not {"case", "knobs", "estimate"} <= row.keys() or row["case"] not in about["jobs"]:
            raise user_error("this row is no prediction", where=f"{file}:{number}", hint=hint)
    return Predictions(about=about, rows=rows[1:])


def read_rows(file: Path) -> list[Row]:
    """The JSON objects of a file, one a line.

    Raises:
        UserError: it cannot be read.
    """
    rows = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise user_error(f"cannot read the file: {error}", where=str(file)) from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise user_error("this line is no JSON object", where=f"{file}:{number}")
        rows.append(row)
    return rows


def described(device: DeviceFacts) -> Row:
    """A device that is here, and what its driver and the environment say."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
    variables = {k: v for k, v in os.environ.items() if k.startswith(("CUDA", "PYTORCH"))}
    return {
        "device": asdict(device),
        "nvidia_smi": said_by("nvidia-smi", f"--query-gpu={query}", "--format=csv"),
        "variables": variables,
    }
