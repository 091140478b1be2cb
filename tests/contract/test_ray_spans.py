"""Probes and launches that span two nodes of Ray, trained for real, and one that loses a node."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes, a_probe, lanes
from staging import STUBS_PATH, still_running
from test_ray_faults import hear, measured, pids

from autotune.engine.call import Call, result_of
from autotune.engine.launching import launcher_of
from autotune.probe.measure import probe_task
from autotune.probe.protocol import Measurement
from autotune.process.child_server import PRELOAD, ChildServer
from autotune.process.progress import ProgressReader
from autotune.run import verdict, verify
from autotune.run.deadline import Deadline
from autotune.run.job_session import render
from autotune.search.recommend import Ranked, Recommendation
from tests.cpu.compiled import compile_once
from tests.cpu.conftest import LLAMA, Bench, Sweep, open_bench
from tests.cpu.test_run import assert_launched, write_job
from tests.guards import some_of

WAYS: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_CPU"},
    "ZeRO-1": {"distributed_type": "DEEPSPEED", "zero_stage": 1},
    "ZeRO-2": {"distributed_type": "DEEPSPEED", "zero_stage": 2},
    "ZeRO-3": {"distributed_type": "DEEPSPEED", "zero_stage": 3},
    "FSDP2": {"distributed_type": "FSDP", "fsdp_reshard_after_forward": True},
}


@pytest.fixture(scope="module")
def pair(cluster: Nodes, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine whose lane is on two nodes, with what trains."""
    for number in (2, 3):
        cluster.start(number, AUTOTUNE_QUIET="1")
    folder = tmp_path_factory.mktemp("pair")
    engine = lanes(cluster, folder, 1, on=(2, 3), span=2, preload=PRELOAD)
    yield engine
    engine.close()
    for number in (2, 3):
        if number in cluster.started:
            cluster.kill(number)


@pytest.fixture(scope="module")
def bench(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A job of two machines with a process each."""
    lengths = "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 200}}"
    sets = [lengths, "devices={kind: cpu, nodes: 2}", "global_batch_size=8", "max_length=32"]
    folder = tmp_path_factory.mktemp("two machines")
    with ChildServer(folder / "log", environment={"PYTHONPATH": STUBS_PATH}) as server:
        yield open_bench(folder, server, LLAMA, sets)


@pytest.fixture(scope="module")
def probes(pair: Any, bench: Bench, compiled: Path) -> Sweep:
    def made(name: str) -> Measurement:
        if name.startswith("ZeRO"):
            compile_once(compiled)
        return probed(pair, bench, name)

    return Sweep(made)


def probed(engine: Any, bench: Bench, name: str) -> Measurement:
    chosen = {"per_device_train_batch_size": 2, **WAYS[name]}
    task = probe_task(
        bench.space.settings(bench.candidate(**chosen), str(bench.run.output)),
        rows=bench.run.rows,
        limit=bench.facts.device.free_bytes,
        timed=False,
        elsewhere=True,
    )
    task = dataclasses.replace(task, worker="tests.cpu.workers:brief")
    folder = str(bench.run.path / "probes" / name)
    return result_of(engine, Call(key=name, folder=folder, request=task.plain())).measurement()


@pytest.mark.parametrize("name", some_of(WAYS, ("DDP",), "ranks"))
def test_a_probe_has_a_rank_on_each_of_two_nodes(probes: Sweep, bench: Bench, name: str) -> None:
    one = probes[name]
    assert one.outcome == "ok", (one.reason, one.failure)
    assert one.engine == name and one.node is not None and len(one.node.split(", ")) == 2
    assert [rank["rank"] for rank in one.ranks] == [0, 1]
    assert one.peak_memory_bytes == max(rank["peak_memory_bytes"] for rank in one.ranks)
    if name != "ZeRO-3":  # it draws its random weights in another order
        assert probes["DDP"].outcome == "ok"
        assert losses(bench, name) == pytest.approx(losses(bench, "DDP"), rel=1e-4)


def losses(bench: Bench, name: str) -> list[float]:
    """Of the first rank, in its first micro-steps."""
    events = ProgressReader(bench.run.path / "probes" / name / "progress.jsonl").new_events()
    return [event["loss"] for event in events if event["event"] == "micro_step"][:12]


def test_a_bundle_is_launched_on_each_of_two_nodes(
    pair: Any, bench: Bench, probes: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "SPEED_TOLERANCE", 10.0)
    monkeypatch.setattr(verify, "TIMED_ROWS", 16)
    monkeypatch.setattr(verify, "TIMED_S", 0.5)
    run = bench.run
    candidate = bench.candidate(**WAYS["DDP"])
    ranked = Ranked(number=0, candidate=candidate, measurement=probes["DDP"])
    found = Recommendation(chosen=ranked, reasons=(), ties=(), runners_up=())
    files = render(found, run, bench.space, [], None)
    assert "launch.sh" not in files
    run.write_bundle(run.bundle, files)
    stages: list[str] = []
    outcome = verify.verify(
        run,
        bench.space.settings(candidate, str(run.output)),
        ranked,
        bench.server,
        lambda: probes["DDP"],
        Deadline(),
        lambda stage, seconds: stages.append(stage),
        launcher=launcher_of(pair),
    )
    assert_launched(outcome.plain())
    assert outcome.exit_code == 0 and stages[-1] == "end"
    other = (run.verification / "node-1" / "launch.log").read_text(encoding="utf-8")
    assert "'train_runtime'" in other


def test_a_launch_that_fails_on_one_node_is_named_with_it(pair: Any, tmp_path: Path) -> None:
    script = 'echo "$MACHINE_RANK of $NODES"; [ "$MACHINE_RANK" = 0 ] && sleep 60; exit 3'
    report = launcher_of(pair)(
        ["bash", "-c", script],
        log=tmp_path / "launch.log",
        environment={},
        timeout_s=60.0,
        gpus=(),
        on_line=lambda when_s, line: None,
    )
    assert (report.exit_code, [line for _, line in report.lines]) == (3, ["1 of 2"])
    assert report.node is not None and report.seconds < 30.0


def test_a_probe_that_loses_one_of_its_nodes_is_made_once_more_on_others(
    cluster: Nodes, pair: Any, tmp_path: Path
) -> None:
    pair.close()  # its nodes are for this one; it takes them again
    cluster.start(4)
    engine = lanes(cluster, tmp_path, 1, on=(2, 3, 4), span=2)
    try:
        engine.begin(a_probe(tmp_path, "0000", "stubs:meets_others"))
        parts = [tmp_path / "0000", tmp_path / "0000" / "node-1"]
        hear(engine, lambda _: all((part / "pids").exists() for part in parts))
        first, second = (pids(part)[0] for part in parts)
        lost = cluster.of(second)
        cluster.kill(lost)
        found = measured(engine)
        assert found.outcome == "ok" and found.node is not None
        assert found.reason.startswith("fine; tried again, as at first what ran it on ")
        assert len(found.node.split(", ")) == 2 and [one["rank"] for one in found.ranks] == [0, 1]
        assert still_running([first, second]) == []
        again = [tmp_path / "0000-again", tmp_path / "0000-again" / "node-1"]
        assert all((part / "reply.json").exists() for part in again)
    finally:
        engine.close()
        if 4 in cluster.started:
            cluster.kill(4)
        for number in {2, 3} - cluster.started.keys():
            cluster.start(number)


@pytest.mark.nightly("ranks")
def test_a_run_of_two_machines_is_verified_again_where_it_was_made(
    cluster: Nodes, pair: Any, tmp_path: Path
) -> None:
    pair.close()
    fixed = {"optim": "adamw_torch_fused", "distributed_type": "MULTI_CPU"}
    devices, budget = {"kind": "cpu", "nodes": 2}, {"probes": 1, "minutes": 9}
    write_job(tmp_path, devices=devices, budget=budget, fixed=fixed)

    def autotune(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *arguments, "--json"],
            cwd=tmp_path,
            env={**os.environ, **cluster.variables, "PYTHONPATH": STUBS_PATH},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    engine = ("--engine=ray", f"--address={cluster.address}", "--at-once=1")
    autotune("run", "job.yaml", "--out=run", "--no-verify", *engine)
    (probe,) = autotune("report", "run")["probes"]
    assert probe["measurement"]["engine"] == "DDP"
    assert len(probe["measurement"]["node"].split(", ")) == 2
    assert_launched(autotune("verify", "run"))
    assert (tmp_path / "run" / "verification" / "node-1" / "launch.log").exists()
