"""A run on disk as a search leaves it: real study and run folder, measurements made up."""

import json
from dataclasses import replace
from pathlib import Path

from autotune.bundle.planned import Planned, planned_files
from autotune.estimate.residual import Residual
from autotune.estimate.speed.step_time import TimeParts
from autotune.facts import Facts
from autotune.job.yaml_file import to_yaml
from autotune.probe.protocol import Measurement
from autotune.probe.survey import allowed_memory
from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.past_run import reopen
from autotune.run.verdict import Verification
from autotune.search.study import Study
from autotune.space.bind import bind
from autotune.space.job_file.load import load_job
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, bad, make_estimate, make_facts, make_sampler, ok

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
    study = Study(space, run.database, STUDY, allowed_bytes=allowed, sampler=make_sampler(space))
    for measurement in measurements:
        trial, _ = study.ask()
        study.tell(trial, measurement)
    return run


def make_whole_run(folder: Path, **fields) -> RunFolder:
    """A run as it ends: with a recipe that varied, estimates, repeats, a bundle and an ending."""
    measurements = (
        *MEASUREMENTS[:2],
        replace(bad("oom", missing_bytes=5 * GIB, seconds=2.0), memory_limit_bytes=70 * GIB),
        *MEASUREMENTS[3:],
        replace(ok(150.0, 4 * GIB, 0.02), step_time_s=0.3, seconds=4.0),
    )
    run = make_run(folder, measurements, recipe={"max_length": [512, 1024]}, **fields)
    past = reopen(run.path)
    sampler = make_sampler(past.space)
    again = Study(past.space, run.database, STUDY, allowed_bytes=None, sampler=sampler)
    trial, _ = again.ask_for(past.records[1].candidate)
    again.tell(trial, replace(MEASUREMENTS[1], tokens_per_s=204.0))
    estimates = {}
    for number, candidate in enumerate(past.space.candidates):
        size = (2 + number % 7) * GIB // 4
        parts = {"weights": size, "gradients": size, "activations": 2 * size, "context": size}
        estimates[candidate.key] = replace(
            make_estimate(5 * size, tokens_per_s=90.0 + number % 50),
            parts=parts,
            time_parts=TimeParts(matmul_s=0.2 + number % 5 / 10),
        )
    prior = Residual(offset_bytes=GIB, sigma_bytes=0.1 * GIB)
    expected = Expectations(estimates=estimates, prior=prior, limit_bytes=past.allowed_bytes)
    write_json(run.estimates, expected.plain())
    saving = {"probing_s": 20.0, "job_s": 900.0, "default_s": 1800.0, "measured": False}
    ending = {"outcome": "recommended", "stop_reason": "all probed", "saving": saving}
    write_json(run.ending, ending)
    past = reopen(run.path)
    verified = Verification(verified=True, reason="launched: 198 tokens/s of 200 promised")
    run.write_bundle(run.bundle, past.files(past.recommendation(), verified))
    return run


def write_planned(folder: Path, bundle: Path) -> None:
    """The bundle of a plan of the job in `folder`."""
    job, definition = load_job(write_job(folder))
    facts = past_facts(folder)
    planned = Planned(
        candidate=bind(definition, job, facts).default(),
        estimate=replace(make_estimate(3 * GIB, 2700.0), step_time_s=1.6),
        device=facts.device.name,
        candidates=72,
        limit_bytes=20 * GIB,
    )
    files = planned_files(
        planned, settings(job, facts, planned.candidate, "/out"), python="python3"
    )
    for name, text in files.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_text(text, encoding="utf-8")
