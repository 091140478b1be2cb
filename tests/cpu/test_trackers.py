"""A search in the real trackers, each read back by its own reader; what happens where one fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.search.study import Study
from autotune.trackers import TRACKERS
from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, write_job
from tests.unit.builders import make_sampler, ok
from tests.unit.past_run import STUDY, make_whole_run

PYTHON = Path(sys.prefix) / "trackers" / "bin" / "python"
READER = Path(__file__).with_name("tracked_runs.py")
FAILED = {"wandb": 1, "mlflow": "FAILED", "trackio": "failed", "tensorboard": 2}
FINISHED = {"wandb": 0, "mlflow": "FINISHED", "trackio": "finished", "tensorboard": 1}


@dataclass(frozen=True)
class Tracked:
    """A folder in which commands run with the trackers installed, all of them offline."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, **variables: str) -> tuple[str, str]:
        """What `autotune ...` prints, and what it says."""
        done = self._python("-m", "autotune", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def read(self, tool: str, *runs: str) -> dict[str, dict[str, Any]]:
        """What a tool holds of these runs, by the names of its own."""
        folders = [self.folder]
        if tool == "tensorboard":
            folders = [self.folder / run / "tracking" / tool for run in runs]
        done = self._python(str(READER), tool, *map(str, folders))
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def _python(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        assert PYTHON.exists(), "run scripts/setup --trackers"
        return subprocess.run(
            [str(PYTHON), *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=900,
        )


@dataclass(frozen=True)
class Sent:
    """What was sent of a real run and of a recorded one, and what each tool holds of both."""

    result: Mapping[str, Any]
    said: str
    probes: Sequence[Mapping[str, Any]]
    bundle: Path
    held: Mapping[str, Mapping[str, dict[str, Any]]]


def tracked_in(folder: Path, plan_cache: Path) -> Tracked:
    """Commands in a folder, which is the home of the tools, too."""
    return Tracked(
        folder,
        {
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "home" / "cache"),
            "AUTOTUNE_CACHE": str(plan_cache),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "offline",
            "TRACKIO_DIR": str(folder / "trackio"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        },
    )


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> Sent:
    """A run while Trackio cannot write; later it can. A recorded run, and again after one more
    probe, as `--resume` leaves it."""
    folder = tmp_path_factory.mktemp("a 0 ü")
    tracked = tracked_in(folder, plan_cache)
    one = {**FEW, "gradient_checkpointing": False}
    write_job(folder, fixed=one, budget={"probes": 2, "minutes": 5})
    (folder / "file").touch()
    command = ("run", "job.yaml", "--out", "runs/a", "--json", "--no-verify", "--no-history")
    beneath = str(folder / "file" / "trackio")
    out, said = tracked.run(*command, *flags(*TRACKERS), TRACKIO_DIR=beneath)
    report, _ = tracked.run("report", "runs/a", "--json", *flags("trackio"))
    run = make_whole_run(folder)
    tracked.run("report", "run", *flags(*TRACKERS))
    tell_another(run.path)
    tracked.run("report", "run", *flags(*TRACKERS))
    return Sent(
        result=json.loads(out),
        said=said,
        probes=json.loads(report)["probes"],
        bundle=folder / "runs" / "a" / "bundle",
        held={tool: tracked.read(tool, "runs/a", "run") for tool in TRACKERS},
    )


def flags(*tools: str) -> list[str]:
    return [word for tool in tools for word in ("--track", tool)]


def assert_same(found: Mapping[str, Any], knobs: Mapping[str, Any]) -> None:
    """The knobs are there; MLflow keeps texts, and TensorBoard no whole numbers."""
    for name, value in knobs.items():
        kept = found[name]
        kept = int(kept) if isinstance(kept, float) and kept.is_integer() else kept
        assert str(kept) == str(value), name


def assert_near(found: float | None, expected: float | None) -> None:
    """The same figure, in TensorBoard of single precision, or none on both sides."""
    near = None if expected is None else pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found == near


@pytest.mark.nightly("scripts")
def test_the_search_of_a_script_is_sent_as_one_of_a_job_is(
    tmp_path: Path, plan_cache: Path
) -> None:
    tracked = tracked_in(tmp_path, plan_cache)
    script = str(Path(__file__).parent / "scripts" / "collator.py")
    limits = ["--set", "budget.probes=1", "--no-verify", "--out", "run", "--json"]
    sending = ("--script", script, *limits, *flags("tensorboard"), "--", "out")
    out, _ = tracked.run("run", *sending)
    measured = json.loads(out)["measurement"]
    before = tracked.read("tensorboard", "run")
    probe, whole = before["run probe 0"], before["run"]
    assert probe["config"]["trainer"] == "WeightedTrainer" == whole["config"]["trainer"]
    assert probe["config"]["script"] == "collator.py"
    assert_near(probe["metrics"]["tokens_per_s"], measured["tokens_per_s"])
    assert (probe["state"], whole["state"]) == (FINISHED["tensorboard"],) * 2
    assert "launch.sh" in whole["files"]
    tracked.run("report", "run", *flags("tensorboard"))
    assert tracked.read("tensorboard", "run") == before, "nothing is sent twice"


def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(sent: Sent) -> None:
    assert sent.result["outcome"] == "recommended"
    (warning,) = [line for line in sent.said.splitlines() if line.startswith("tracking with ")]
    assert warning.startswith("tracking with trackio: ") and "Not a directory" in warning
    run = sent.bundle.parent
    assert f"`autotune report '{run}' --track trackio` sends the rest later" in warning


@pytest.mark.parametrize("tool", TRACKERS)
def test_each_probe_is_a_run_with_its_knobs_and_what_was_expected_of_it(
    sent: Sent, tool: str
) -> None:
    for probe in sent.probes:
        found, measured = sent.held[tool][f"a probe {probe['probe']}"], probe["measurement"]
        assert measured["outcome"] in ("ok", "stopped") and found["state"] == FINISHED[tool]
        assert_same(found["config"], probe["knobs"])
        for name in ("tokens_per_s", "peak_memory_bytes", "step_time_s"):
            expected, real = probe["estimate"][name], measured[name]
            assert_near(found["metrics"].get(name), real)
            assert_near(found["metrics"].get(f"estimated_{name}"), expected)
            error = expected / real - 1 if expected and measured["outcome"] == "ok" else None
            assert_near(found["metrics"].get(f"{name}_estimate_error"), error)
        assert found["metrics"]["estimated_peak_memory_bytes"] > 0


@pytest.mark.parametrize("tool", TRACKERS)
def test_the_run_itself_has_the_winner_and_the_bundle(sent: Sent, tool: str) -> None:
    whole = sent.held[tool]["a"]
    assert set(whole["files"]) == {file.name for file in sent.bundle.iterdir()}
    assert "launch.sh" in whole["files"]
    speed = sent.result["measurement"]["tokens_per_s"]
    assert whole["metrics"]["tokens_per_s"] == pytest.approx(speed)
    assert_same(whole["config"], {"method": "sft", "global_batch_size": 8})


@pytest.mark.parametrize("tool", TRACKERS)
def test_failed_probes_are_marked_and_nothing_is_there_twice(sent: Sent, tool: str) -> None:
    """The reader refuses two runs of one name."""
    runs = sent.held[tool]
    assert set(runs) == {
        *("a", "run"),
        *(f"a probe {probe['probe']}" for probe in sent.probes),
        *(f"run probe {number}" for number in range(9)),
    }
    oom = runs["run probe 2"]
    assert oom["state"] == FAILED[tool]
    told = {**oom["config"], **oom["metrics"]}
    assert (told["outcome"], told["reason"]) == ("oom", "it was oom")
    assert oom["metrics"]["missing_bytes"] > 0 and "tokens_per_s" not in oom["metrics"]
    assert runs["run probe 5"]["state"] not in (FINISHED[tool], "finished")  # it was interrupted
    assert runs["run"]["metrics"]["verified"] == 1 and runs["run"]["metrics"]["probes"] == 9
    assert {each["metrics"].get("logs", 1) for name, each in runs.items() if " " in name} == {1}


def tell_another(folder: Path) -> None:
    """One more probe in the study of a run."""
    from autotune.run.past_run import reopen

    past = reopen(folder)
    sampler = make_sampler(past.space)
    study = Study(past.space, past.run.database, STUDY, allowed_bytes=None, sampler=sampler)
    trial, _ = study.ask()
    study.tell(trial, ok(50.0, 2**30, 0.01))


def test_a_missing_package_is_said_before_anything_begins(autotune: Command) -> None:
    write_job(autotune.folder, fixed=FEW)
    (autotune.folder / "wandb").mkdir()  # as wandb itself makes it where it runs offline
    words = autotune.refused("run", "job.yaml", "--out", "run", *flags("wandb", "mlflow"))
    assert "--track wandb: its package is not installed\n  hint: pip install wandb" in words
    assert "pip install mlflow" in words
    assert not (autotune.folder / "run").exists()


def test_optuna_dashboard_shows_the_study_of_a_run(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dashboard = PYTHON.with_name("optuna-dashboard")
    command = [str(dashboard), f"sqlite:///{run.database}", "--port", str(port)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            (study,) = fetched(process, f"http://127.0.0.1:{port}/api/studies")["study_summaries"]
            assert (study["study_name"], study["directions"]) == (STUDY, ["maximize"])
            url = f"http://127.0.0.1:{port}/api/studies/{study['study_id']}"
            trials = fetched(process, url)["trials"]
        finally:
            process.send_signal(signal.SIGTERM)
    values = [trial["values"][0] for trial in trials if trial["state"] == "Complete"]
    assert values == [100.0, 200.0, 300.0, 150.0, 204.0]
    assert sum(trial["state"] == "Pruned" for trial in trials) == 2


def fetched(process: "subprocess.Popen[bytes]", url: str) -> dict[str, Any]:
    """What a server that is starting answers."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return dict(json.load(answer))
        except OSError:
            assert process.poll() is None
            time.sleep(0.1)
