"""A real run whose probes are recorded: `tune` with its study, its files and its bundle, without a
device. It can be killed at any moment, at the cost of a forked process."""

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from autotune.engine import opening as engine_opening
from autotune.engine.call import Call
from autotune.estimate.residual import Residual
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder, write_json
from autotune.process.run_folder import RunFolder
from autotune.run import opening, tuning
from autotune.run.expectations import Expectations
from autotune.run.listener import Listener
from autotune.run.session import Options
from autotune.space.definition import load_definition
from autotune.space.job_file.load import load_job
from tests.unit.builders import GIB, bad, make_estimate, ok
from tests.unit.past_run import past_facts, write_job
from tests.unit.run.made_engine import MadeEngine, candidate_of_call

FIXED = {"optim": "adamw_torch", "attn_implementation": "sdpa"}
PROBES = 8
LIMIT = 60 * GIB


def recorded(key: str) -> Measurement:
    """What a probe of a candidate came to: the same whenever it is asked for."""
    rng = random.Random(key)
    if rng.random() < 0.2:
        return bad(rng.choice(("oom", "crash")), missing_bytes=GIB, seconds=1.0)
    speed, peak = rng.uniform(100, 1000), rng.randint(2, 64) * GIB
    measured = replace(ok(speed, peak, 0.001), step_time_s=0.5, seconds=1.0, tokens_per_epoch=1e9)
    return measured if speed > 400 else replace(measured, outcome="stopped", reason="cannot win")


def replay_probe(call: Call) -> Measurement:
    """In place of the measurement; a probe that has ended is not measured a second time."""
    folder, candidate = ChildFolder(path=Path(call.folder)), candidate_of_call(call)
    assert not folder.measurement.exists(), f"{folder.path} was measured already"
    time.sleep(0.005)
    measurement = recorded(candidate.key)
    write_json(folder.measurement, measurement.plain())
    return measurement


def give_estimates(_estimator: Any, space: Any, _run: Any, *, here: bool) -> Expectations:
    """In place of the traces: speeds that are off by up to a half, and of all it may fit."""
    estimates = {}
    for candidate in space.candidates:
        speed = recorded(candidate.key).tokens_per_s or 300.0
        off = random.Random(candidate.key + "!").uniform(0.7, 1.5)
        estimates[candidate.key] = make_estimate(GIB, tokens_per_s=speed * off)
    prior = Residual(relative_sigma=0.3)
    return Expectations(estimates=estimates, prior=prior, limit_bytes=LIMIT)


def give_facts(_job: Any, run: RunFolder, _server: Any, **_: Any) -> Any:
    """In place of the survey."""
    facts = past_facts(run.path.parent)
    write_json(run.facts, facts.plain())
    return facts


def made(_server: Any, at_once: int) -> MadeEngine:
    """In place of the engine of this machine."""
    return MadeEngine(replay_probe, at_once)


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """Everything of a run that a device is needed for is replaced."""
    server = SimpleNamespace(import_s=1.0, fresh="")
    with (
        mock.patch.object(tuning, "ChildServer", lambda _: contextlib.nullcontext(server)),
        mock.patch.object(opening, "survey", give_facts),
        mock.patch.object(opening, "expected", give_estimates),
        mock.patch.object(engine_opening, "LocalEngine", made),
    ):
        yield


def play(folder: Path) -> tuple[str, dict[str, Any] | None]:
    """Begin the run in a folder, or go on with it; its outcome, and the recommended knobs."""
    run = RunFolder(path=folder / "run")
    job = {"budget": {"probes": PROBES, "minutes": 60}, "fixed": FIXED}
    file = run.job if run.exists() else write_job(folder, **job)
    options = None if run.exists() else Options(history=False, verify=False)
    loaded, _ = load_job(file)
    with without_device():
        result = tuning.tune(
            loaded, load_definition("sft"), run, listener=Listener(), options=options
        )
    best = result.recommendation
    return result.outcome, None if best is None else dict(best.chosen.candidate.values)
