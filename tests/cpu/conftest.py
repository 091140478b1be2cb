"""A small job on the CPU that real trainers run in a second or two."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.probe.measure import measure, probe_request
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.probe.survey import survey
from autotune.process.limits import Limits
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.loading.load import load_job

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 509,
    "max_position_embeddings": 512,
}
MAMBA = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 4,
    "vocab_size": 509,
}


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


@dataclass(frozen=True)
class Bench:
    """A surveyed job with a server, ready to probe any candidate of it."""

    job: Job
    run: RunFolder
    facts: Facts
    space: SearchSpace
    server: ChildServer

    def candidate(self, **knobs: Any) -> Candidate:
        """The default candidate with other knobs, whether a rule forbids that or not."""
        base = self.space.default()
        accumulation = knobs.pop("gradient_accumulation_steps", base.gradient_accumulation_steps)
        if "per_device_train_batch_size" in knobs:
            size = base.micro_batch * base.gradient_accumulation_steps
            accumulation = size // knobs["per_device_train_batch_size"]
        return replace(
            base, values={**base.values, **knobs}, gradient_accumulation_steps=accumulation
        )

    def request(
        self, limit: int | None = None, job: Job | None = None, **knobs: Any
    ) -> ProbeRequest:
        return probe_request(
            job or self.job,
            self.facts,
            self.candidate(**knobs),
            rows=self.run.rows,
            output_dir=str(self.run.output),
            limit=limit,
        )

    def probe(self, name: str, limit: int | None = None, **knobs: Any) -> Measurement:
        folder = replace(self.run.probe(0), path=self.run.path / "probes" / name)
        request = self.request(limit, **knobs)
        return measure(self.server, folder, request, Limits(wall_s=120, stall_s=15))


def open_bench(folder: Path, server: ChildServer, config: dict[str, Any], sets: list[str]) -> Bench:
    write_model(folder / "model", config)
    base = [f"model={folder / 'model' / 'config.json'}", "global_batch_size=8", "max_length=128"]
    job, definition = load_job(None, [*base, *sets])
    assert isinstance(definition, SpaceDefinition)
    run = RunFolder(path=folder / "run")
    run.path.mkdir()
    facts = survey(job, run, server)
    return Bench(job, run, facts, bind(definition, job, facts), server)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ChildServer(log, environment={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture(scope="session")
def bench(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    lengths = "dataset={lengths: {max: 120, p50: 30, p99: 100, rows: 400}}"
    return open_bench(tmp_path_factory.mktemp("a 0 ü"), server, LLAMA, [lengths])


COMPILE = """
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder, ShareMemCommBuilder
for builder in (ShareMemCommBuilder, CPUAdamBuilder):
    builder().load()
"""


@pytest.fixture(scope="session")
def deepspeed_compiled(compiled: Path) -> None:
    """What DeepSpeed's ranks compile at first use is there: one that waited for another test's
    compiler would be taken for one that hangs."""
    with FileLock(compiled / "of all tests.lock"):
        if not (compiled / "done").exists():
            environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
            subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True)
            (compiled / "done").touch()


@dataclass(frozen=True)
class Command:
    """`autotune ...` as a user types it, in a folder of its own."""

    folder: Path

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A background job of a shell ignores Ctrl-C, and what it starts does too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=900)
        assert process.returncode == expect, err
        assert "Traceback" not in err
        return out


@pytest.fixture
def autotune(tmp_path: Path) -> Command:
    return Command(tmp_path)
