"""A run on disk as a search leaves it: real study and run folder, measurements made up."""

import json
from dataclasses import replace
from pathlib import Path

from autotune.facts import Facts
from autotune.job.yaml_file import to_yaml
from autotune.probe.protocol import Measurement
from autotune.probe.survey import allowed_memory
from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from autotune.search.sampler.params import compared_sampler
from autotune.search.study import Study
from autotune.space.bind import bind
from autotune.space.job_file.load import load_job
from tests.unit.builders import GIB, bad, make_facts, ok

STUDY = "autotune-test"
MEASUREMENTS = (
    replace(ok(100.0, 2 * GIB, 0.01), step_time_s=0.5, seconds=3.0),
    replace(ok(200.0, 3 * GIB, 0.01), step_time_s=0.25, seconds=3.0),
    bad("oom", missing_bytes=5 * GIB, seconds=2.0),
    bad("crash", seconds=1.0),
    replace(ok(300.0, 69 * GIB, 0.01), step_time_s=0.2, seconds=3.0),
    bad("interrupted"),
)
"""Probe 1 is the one to recommend: probe 4 is faster, but leaves too little memory free."""

JOB = {
    "global_batch_size": 8,
    "training": {"learning_rate": 1e-4, "run_name": "1e-4"},
    "fixed": {"optim": "adamw_torch", "attn_implementation": "sdpa"},
}


def write_job(folder: Path, **fields) -> Path:
    """A job file beside the model folder and the data folder it names."""
    for name in ("m", "d"):
        (folder / name).mkdir(exist_ok=True)
    file = folder / "job.yaml"
    data = {"model": "./m", "dataset": "./d", **JOB, **fields}
    file.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return file


def past_facts(folder: Path) -> Facts:
    """What the survey of that job might have found."""
    facts = make_facts()
    return replace(facts, data=replace(facts.data, source=str(folder / "d")))


def start_run(folder: Path, name: str = "run", **fields) -> RunFolder:
    """A run that was begun and has found no facts yet."""
    job, _ = load_job(write_job(folder, **fields))
    run = RunFolder(path=folder / name)
    run.begin(
        to_yaml(job.plain()), {"schema": 1, "study": STUDY, "version": "0.1.0", "started": "then"}
    )
    return run


def make_run(
    folder: Path, measurements: tuple[Measurement, ...] = MEASUREMENTS, **fields
) -> RunFolder:
    """A run with these measurements told, in this order."""
    run = start_run(folder, **fields)
    job, definition = load_job(run.job)
    facts = past_facts(folder)
    write_json(run.facts, facts.plain())
    space = bind(definition, job, facts)
    allowed = allowed_memory(job, facts.device)
    sampler = compared_sampler("tpe", space, (), seed=0)
    study = Study(space, run.database, STUDY, allowed_bytes=allowed, sampler=sampler)
    for measurement in measurements:
        trial, _ = study.ask()
        study.tell(trial, measurement)
    return run
