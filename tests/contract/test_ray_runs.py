"""A whole run over Ray whose driver is killed, then its cluster, and which ends on another."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes, nodes
from test_ray_faults import wait_for

from tests.cpu.test_run import assert_launched, write_job


def start(folder: Path, cluster: Nodes, *arguments: str) -> "subprocess.Popen[str]":
    """`autotune run` on a cluster."""
    command = [sys.executable, "-m", "autotune", "run", *arguments]
    return subprocess.Popen(
        [*command, "--engine=ray", f"--address={cluster.address}"],
        cwd=folder,
        env={**os.environ, **cluster.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def measured(run: Path) -> dict[str, Any]:
    """What is measured of a probe by its folder, where anything is."""
    files = sorted((run / "probes").glob("*/measurement.json"))
    found = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return {name: (one["tokens_per_s"], one["peak_memory_bytes"]) for name, one in found.items()}


@pytest.mark.nightly("engine")
def test_a_run_outlives_its_driver_and_its_cluster(tmp_path: Path) -> None:
    write_job(tmp_path, devices={"kind": "cpu"}, budget={"probes": 6, "minutes": 9})
    run = tmp_path / "run"
    with nodes(2) as cluster:
        first = start(tmp_path, cluster, "job.yaml", "--out=run")
        wait_for(lambda: len(measured(run)) > 0 or first.poll() is not None, 300.0)
        os.killpg(first.pid, signal.SIGKILL)
        _, errors = first.communicate()
        assert first.returncode == -signal.SIGKILL, errors
        known = measured(run)
        second = start(tmp_path, cluster, "--resume=run")
        wait_for(lambda: len(measured(run)) > len(known) or second.poll() is not None, 300.0)
        before = measured(run)
        assert {name: before[name] for name in known} == known
        cluster.close()
        _, errors = second.communicate(timeout=120)
        assert second.returncode == 3 and f"{cluster.address} does not answer" in errors, errors
        before = measured(run)
    with nodes(2) as another:
        last = start(tmp_path, another, "--resume=run", "--json")
        output, errors = last.communicate(timeout=500)
        assert last.returncode == 0, errors
        result = json.loads(output)
        assert_launched(result["verification"])
        after = measured(run)
        assert {name: after[name] for name in before} == before, "nothing is measured twice"
