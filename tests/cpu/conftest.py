"""A small job on the CPU that real trainers run in a second or two."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.cli import main
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.probe import measure as measuring
from autotune.probe.measure import measure, probe_request
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.probe.survey import survey
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder
from autotune.process.progress import ProgressReader
from autotune.process.run_folder import RunFolder
from autotune.run import verdict, verify
from autotune.run.listener import ProbeSteps
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.load import load_job
from autotune.space.knobs import Candidate
from autotune.space.trl_config import settings
from tests.cpu.compiled import compile_once
from tests.kept import kept_servers

ROOT = str(Path(__file__).parents[2])
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
        candidate = self.candidate(**knobs)
        chosen = settings(job or self.job, self.facts, candidate, str(self.run.output))
        return probe_request(chosen, rows=self.run.rows, limit=limit)

    def probe(self, name: str, limit: int | None = None, **knobs: Any) -> Measurement:
        request = self.request(limit, **knobs)
        return measure(self.server, self._folder(name), request, Limits(wall_s=120, stall_s=15))

    def steps(self, name: str) -> ProbeSteps:
        """How far a probe told it was, at its end."""
        events = ProgressReader(self._folder(name).progress).new_events()
        return functools.reduce(ProbeSteps.after, events, ProbeSteps())

    def _folder(self, name: str) -> ChildFolder:
        return replace(self.run.probe(0), path=self.run.path / "probes" / name)


def open_bench(folder: Path, server: ChildServer, config: dict[str, Any], sets: list[str]) -> Bench:
    write_model(folder / "model", config)
    base = [f"model={folder / 'model' / 'config.json'}", "global_batch_size=8", "max_length=128"]
    job, definition = load_job(None, [*base, *sets])
    assert isinstance(definition, SpaceDefinition)
    run = RunFolder(path=folder / "run")
    run.path.mkdir()
    facts = survey(job, run, server)
    return Bench(job, run, facts, bind(definition, job, facts), server)


@pytest.fixture(scope="package", autouse=True)
def _servers_kept() -> Iterator[None]:
    """Commands that these tests call in this process share their fork servers."""
    with kept_servers():
        yield


@pytest.fixture(scope="package", autouse=True)
def _brief_probes() -> Iterator[None]:
    """How well a speed is known is not what these tests are about: a probe measures for a second
    in place of ten, a launch times four steps, and is not repeated where its speed is another. A
    command that is typed, in a process of its own, measures and judges as a user's does."""
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)  # where the children find the worker
        patch.setattr(measuring, "WORKER", "tests.cpu.workers:brief")
        patch.setattr(verdict, "SPEED_TOLERANCE", 10.0)
        patch.setattr(verify, "TIMED_ROWS", 16)
        patch.setattr(verify, "TIMED_S", 0.5)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ChildServer(log, environment={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture(scope="session")
def bench(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    lengths = "dataset={lengths: {max: 120, p50: 30, p99: 100, rows: 400}}"
    return open_bench(tmp_path_factory.mktemp("a 0 ü"), server, LLAMA, [lengths])


class Sweep:
    """What a benchmark finds of each case, found when a test asks for it: most are left out."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find, self._found = find, dict[Any, Any]()

    def __getitem__(self, case: Any) -> Any:
        if case not in self._found:
            self._found[case] = self._find(case)
        return self._found[case]


@pytest.fixture(scope="session")
def deepspeed_compiled(compiled: Path) -> None:
    """What DeepSpeed's ranks compile at first use is there: one that waited for another test's
    compiler would be taken for one that hangs."""
    compile_once(compiled)


@dataclass(frozen=True)
class Command:
    """`autotune ...` in a folder of its own, called in this process or typed as a user types it.

    A call in this process shares its fork servers with the calls before it (`kept_servers`): the
    stack is imported once, and all else is what a user gets.
    """

    folder: Path

    def __call__(self, *arguments: str, expect: int | None = 0) -> str:
        """What the command prints; None: whether it did what was asked, or says that it failed."""
        return self.both(*arguments, expect=expect)[0]

    def both(self, *arguments: str, expect: int | None = 0) -> tuple[str, str]:
        """The same, and what it says."""
        out, err, code = self._called(arguments)
        assert code == expect or (expect is None and code in (0, 1)), err
        assert "Traceback" not in err
        return out, err

    def refused(self, *arguments: str) -> str:
        """What a command says that ends with exit code 2 and prints nothing."""
        out, err, code = self._called(arguments)
        assert (code, out) == (2, ""), err
        assert "Traceback" not in err
        return err

    def _called(self, arguments: Sequence[str]) -> tuple[str, str, int]:
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with contextlib.chdir(self.folder):
                result = CliRunner().invoke(main, arguments, prog_name="autotune")
        finally:
            signal.signal(signal.SIGTERM, handler)
        return result.stdout, result.stderr, result.exit_code

    def typed(self, *arguments: str, expect: int | None = 0) -> str:
        """What the command prints in a process of its own."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=900)
        code = process.returncode
        assert code == expect or (expect is None and code in (0, 1)), err
        assert "Traceback" not in err
        return out

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


@pytest.fixture
def autotune(tmp_path: Path) -> Command:
    return Command(tmp_path)
